"""matmul against float64: awkward sizes, rows that lie apart, a row's bits in any batch."""

import itertools

import pytest
import torch

from radixserve_kernels import reference
from radixserve_kernels.matmul import matmul, tile_for
from radixserve_kernels.tiles import CHIPS, UNIFORM_M, matmul_tiles
from tests.kernels.paged_rows import TOLERANCE

HEIGHTS = (1, 2, 5, 16, 17, 64, 65, 130)
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
uniform_or_not = pytest.mark.parametrize("uniform", [False, True], ids=["by rows", "uniform"])


def tensors(rows, inputs, outputs, device, dtype=torch.float32):
    """x with NaN around each row, a weight with NaN around it all, and a bias."""
    generator = torch.Generator().manual_seed(rows + inputs)
    memory = torch.full((rows + 2, inputs + 24), float("nan"), dtype=dtype)
    memory[1:-1, 8:-16] = torch.randn(rows, inputs, generator=generator)
    weights = torch.full((outputs + 2, inputs), float("nan"), dtype=dtype)
    weights[1:-1] = torch.randn(outputs, inputs, generator=generator)
    bias = (10 * torch.randn(outputs, generator=generator)).to(device, dtype)
    return memory.to(device)[1:-1, 8:-16], weights.to(device)[1:-1], bias


def assert_close(x, weight, bias, uniform=False):
    """Within the error of a float32 sum, and half a last place of the one rounding."""
    x64, weight64 = x.double(), weight.double()
    bias64 = None if bias is None else bias.double()
    expected = reference.matmul(x64, weight64, bias64)
    size = reference.matmul(x64.abs(), weight64.abs(), None if bias is None else bias64.abs())
    out = matmul(x, weight, bias, uniform=uniform)
    assert out.dtype is x.dtype and out.is_contiguous() and out.shape == (len(x), len(weight))
    kind = torch.finfo(x.dtype)
    rounding = kind.eps / 2 * expected.abs() + kind.smallest_normal * kind.eps
    assert ((out.double() - expected).abs() <= 1e-6 * size + rounding).all()


@dtypes
@uniform_or_not
@pytest.mark.parametrize("rows", [1, 16, 17, 65, 130])
def test_rows(rows, uniform, dtype, device):
    x, weight, bias = tensors(rows, 128, 96, device, dtype)
    assert_close(x, weight, bias, uniform)
    assert_close(x, weight, None, uniform)


@dtypes
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [(1, 31), (8, 130), (63, 33), (64, 1), (65, 31), (65, 130), (200, 1), (200, 33)],
)
def test_inputs_and_outputs_that_fill_no_tile(inputs, outputs, dtype, device):
    for rows in (3, 20):
        assert_close(*tensors(rows, inputs, outputs, device, dtype))


def test_more_row_tiles_than_a_group(device):
    """1,300 rows are 11 tiles of 128: a group of 8, and a last one of 3."""
    assert_close(*tensors(1300, 40, 200, device))


@dtypes
@pytest.mark.parametrize(
    ("inputs", "uniform"), [(96, False), (200, True)], ids=["by rows", "uniform"]
)
def test_a_row_has_the_same_bits_in_any_batch(inputs, uniform, dtype, device):
    x, weight, bias = tensors(200, inputs, 150, device, dtype)
    whole = matmul(x, weight, bias, uniform=uniform)
    for height, start in itertools.product(HEIGHTS, (0, 13, 70)):
        rows = slice(start, start + height)
        assert torch.equal(matmul(x[rows], weight, bias, uniform=uniform), whole[rows]), (
            height,
            start,
        )


@pytest.mark.filterwarnings("ignore:invalid value")  # infinity times the zeros of a tile's rest
def test_what_is_not_finite_stays_in_its_row(device):
    x, weight, bias = tensors(20, 70, 40, device)
    expected = matmul(x, weight, bias)
    x[7, 69], x[9, 0] = torch.nan, torch.inf
    out = matmul(x, weight, bias)
    others = [row for row in range(20) if row not in (7, 9)]
    assert torch.equal(out[others], expected[others])
    assert not out[[7, 9]].isfinite().any()


def test_the_bias_is_added_before_the_one_rounding(device):
    """257 and 1 are 258; but 257 alone would be stored as 256, and with the bias stay 256."""
    x = torch.ones(1, 2, dtype=torch.bfloat16, device=device)
    weight = torch.tensor([[256.0, 1.0]], dtype=torch.bfloat16, device=device)
    assert matmul(x, weight).item() == 256
    assert matmul(x, weight, weight.new_ones(1)).item() == 258


def test_nothing_to_do(device):
    x, weight, bias = tensors(2, 16, 48, device)
    assert matmul(x[:0], weight, bias).shape == (0, 48)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_all_forms_add_in_the_same_steps(chip, itemsize):
    assert len({tile.block_k for tile in matmul_tiles(chip, itemsize)}) == 1
    chosen = [tile_for(chip, itemsize, rows, uniform=False).block_m for rows in HEIGHTS]
    assert chosen == [16, 16, 16, 16, 64, 64, 128, 128]
    assert all(tile_for(chip, itemsize, r, uniform=True).block_m >= UNIFORM_M for r in HEIGHTS)


WRONG = {
    "x must be .T, K.": dict(x=lambda x: x[0]),
    "weight .N, K.": dict(weight=lambda w: w[:, :-1].contiguous()),
    r"are \(4, 16\) and \(0, 16\)": dict(weight=lambda w: w[:0], bias=lambda b: b[:0]),
    r"bias must be \[24\]": dict(bias=lambda b: b[:-1]),
    "float32, bfloat16 or float16": dict(x=lambda x: x.double()),
    "must be torch.float32": dict(bias=lambda b: b.half()),
    "last stride of x": dict(x=lambda x: x.t().contiguous().t()),
    "weight and bias contiguous": dict(weight=lambda w: w.t().contiguous().t()),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_refused(sentence, device):
    names = ("x", "weight", "bias")
    good = dict(zip(names, tensors(4, 16, 24, device), strict=True))
    changed = {name: change(good[name]) for name, change in WRONG[sentence].items()}
    with pytest.raises(ValueError, match=sentence):
        matmul(**good | changed)
