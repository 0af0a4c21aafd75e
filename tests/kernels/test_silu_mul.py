"""silu_mul against float64: awkward sizes, rows that lie apart, gates of any size."""

import pytest
import torch

from radixserve_kernels import reference
from radixserve_kernels.silu_mul import silu_mul
from tests.kernels.paged_rows import TOLERANCE, worst_error


def assert_close(x):
    out = silu_mul(x)
    assert out.dtype is x.dtype and out.shape == (len(x), x.shape[1] // 2)
    assert worst_error([out], [reference.silu_mul(x.double())]) < TOLERANCE[x.dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [1, 7, 64, 2047, 2048, 2049, 3000])
def test_sizes(size, dtype, device):
    generator = torch.Generator().manual_seed(size)
    memory = torch.full((3, 2 * size + 24), float("nan"), dtype=dtype)
    memory[:, 8:-16] = 2 * torch.randn(3, 2 * size, generator=generator)
    assert_close(memory.to(device)[:, 8:-16])


def test_gates_of_any_size(device):
    gate = torch.tensor([0.0, -0.0, 1e-30, 20, -20, 88, 89, 3e38, -50], device=device)
    up = torch.ones_like(gate)
    expected = reference.silu_mul(torch.cat([gate, up])[None].double())
    got = silu_mul(torch.cat([gate, up])[None])
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=0)
    far = torch.tensor([[-104.0, -3e38, 1.0, 1.0]], device=device)
    assert silu_mul(far).abs().max() < 1e-40


def test_nan_stays_nan(device):
    nan, one = float("nan"), 1.0
    got = silu_mul(torch.tensor([[nan, one, one, one, nan, one]], device=device))
    assert got.isnan().tolist() == [[True, True, False]]


def test_nothing_to_do(device):
    assert silu_mul(torch.ones(0, 32, device=device)).shape == (0, 16)


WRONG = {
    "x must be .T, 2": lambda x: x[:, :-1],
    "float32, bfloat16 or float16": lambda x: x.double(),
    "last stride": lambda x: x.t().contiguous().t(),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_refused(sentence, device):
    with pytest.raises(ValueError, match=sentence):
        silu_mul(WRONG[sentence](torch.ones(4, 16, device=device)))
