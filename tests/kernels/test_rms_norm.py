"""rms_norm against float64: awkward sizes, rows that lie apart, the residual, bits per row."""

import pytest
import torch

from radixserve_kernels import reference
from radixserve_kernels.rms_norm import rms_norm
from tests.kernels.paged_rows import TOLERANCE, worst_error

EPS = 1e-5
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def tensors(shape, device, dtype=torch.float32):
    """x with NaN around each token's part, a weight, and a residual."""
    generator = torch.Generator().manual_seed(sum(shape))
    memory = torch.full((shape[0], shape[1:].numel() + 24), float("nan"), dtype=dtype)
    x = memory[:, 8:-16].unflatten(1, shape[1:])
    x.copy_(3 * torch.randn(shape, generator=generator))
    weight = (1 + torch.randn(shape[1:], generator=generator) / 4).to(dtype)
    residual = torch.randn(shape, generator=generator).to(dtype)
    memory = memory.to(device)
    return memory[:, 8:-16].unflatten(1, shape[1:]), weight.to(device), residual.to(device)


def assert_close(x, weight, residual=None):
    exact = [None if t is None else t.double() for t in (x, weight, residual)]
    expected = reference.rms_norm(exact[0], exact[1], EPS, exact[2])
    kept = x.clone()
    out = rms_norm(x, weight, EPS, residual)
    assert out.dtype is x.dtype and out.shape == x.shape and out.is_contiguous()
    assert worst_error([out], [expected]) < TOLERANCE[x.dtype]
    assert torch.equal(x, kept)
    if residual is not None:
        assert worst_error([residual], [exact[2]]) < TOLERANCE[x.dtype]


@dtypes
@pytest.mark.parametrize("size", [1, 7, 64, 576, 1000, 4096])
def test_sizes(size, dtype, device):
    x, weight, residual = tensors(torch.Size([3, size]), device, dtype)
    assert_close(x, weight)
    assert_close(x, weight, residual)


@dtypes
def test_a_weight_per_head(dtype, device):
    x, weight, residual = tensors(torch.Size([5, 3, 80]), device, dtype)
    assert_close(x, weight)
    assert_close(x, weight, residual)


def test_the_sum_is_normalised_as_it_is_stored(device):
    x, weight, residual = tensors(torch.Size([4, 96]), device, torch.bfloat16)
    out = rms_norm(x, weight, EPS, residual)
    assert torch.equal(out, rms_norm(residual, weight, EPS))


def test_eps_keeps_a_row_of_zeros_finite(device):
    zeros, weight = torch.zeros(2, 48, device=device), torch.ones(48, device=device)
    assert torch.equal(rms_norm(zeros, weight, EPS), zeros)
    tiny = torch.full((1, 48), 1e-3, device=device)
    expected = torch.full_like(tiny, 1e-3 * (1e-6 + 1.0) ** -0.5)
    torch.testing.assert_close(rms_norm(tiny, weight, 1.0), expected, rtol=1e-6, atol=0)


def test_bits_do_not_depend_on_the_batch(device):
    x, weight, _ = tensors(torch.Size([9, 200]), device)
    together = rms_norm(x, weight, EPS)
    for row in range(9):
        assert torch.equal(rms_norm(x[row : row + 1], weight, EPS)[0], together[row])


def test_nothing_to_do(device):
    x, weight, residual = tensors(torch.Size([2, 16]), device)
    assert rms_norm(x[:0], weight, EPS, residual[:0]).shape == (0, 16)


WRONG = {
    "x must be .T, n.": dict(x=lambda x: x[0]),
    "from 1 to 32768": dict(x=lambda x: x.new_zeros(4, 32769)),
    "weight must be": dict(weight=lambda w: w[:-1]),
    "residual must have x's shape": dict(residual=lambda r: r[:-1]),
    "float32, bfloat16 or float16": dict(x=lambda x: x.double()),
    "must be torch.float32": dict(weight=lambda w: w.half()),
    "last stride of x": dict(x=lambda x: x.t().contiguous().t()),
    "residual contiguous": dict(residual=lambda r: r.t().contiguous().t()),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_refused(sentence, device):
    names = ("x", "weight", "residual")
    good = dict(zip(names, tensors(torch.Size([4, 16]), device), strict=True))
    changed = {name: change(good[name]) for name, change in WRONG[sentence].items()}
    with pytest.raises(ValueError, match=sentence):
        rms_norm(eps=EPS, **good | changed)
