"""rms_norm in C against float64: awkward sizes, rows apart, the residual, bits per row and body."""

import pytest
import torch

from radixserve_kernels import cpu, reference
from radixserve_kernels.cpu import rms_norm

EPS = 1e-5
SIZES = [1, 7, 16, 63, 64, 65, 576, 1000, 4096]


def tensors(shape):
    """x with NaN around each token's part, a weight, and a residual with NaN behind it."""
    generator = torch.Generator().manual_seed(sum(shape))
    size = torch.Size(shape[1:]).numel()
    memory = torch.full((shape[0], size + 24), float("nan"))
    x = memory[:, 8:-16].unflatten(1, shape[1:])
    x.copy_(3 * torch.randn(shape, generator=generator))
    weight = 1 + torch.randn(shape[1:], generator=generator) / 4
    behind = torch.full((shape[0] * size + 16,), float("nan"))
    residual = behind[: shape[0] * size].view(shape)
    residual.copy_(torch.randn(shape, generator=generator))
    return x, weight, residual


def assert_close(x, weight, residual=None):
    exact = [None if t is None else t.double() for t in (x, weight, residual)]
    expected = reference.rms_norm(exact[0], exact[1], EPS, exact[2])
    kept = x.clone()
    out = rms_norm(x, weight, EPS, residual)
    assert out.dtype is torch.float32 and out.shape == x.shape and out.is_contiguous()
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(x, kept)
    if residual is not None:
        torch.testing.assert_close(residual, exact[2].float(), rtol=1e-6, atol=1e-6)
        behind = residual.as_strided((16,), (1,), residual.storage_offset() + residual.numel())
        assert behind.isnan().all()


@pytest.mark.parametrize("size", SIZES)
def test_sizes(size, body):
    x, weight, residual = tensors([3, size])
    assert_close(x, weight)
    assert_close(x, weight, residual)


@pytest.mark.parametrize("size", [64, 80, 3])
def test_a_weight_per_head(size, body):
    x, weight, residual = tensors([5, 3, size])
    assert_close(x, weight)
    assert_close(x, weight, residual)


def test_heads_that_lie_apart(body):
    x, weight, _ = tensors([5, 12, 32])
    assert_close(x[:, 2:8:2], weight[:3].contiguous())


def test_the_sum_is_normalised_as_it_is_stored(body):
    x, weight, residual = tensors([4, 96])
    out = rms_norm(x, weight, EPS, residual)
    assert torch.equal(out, rms_norm(residual, weight, EPS))


def test_eps_keeps_a_row_of_zeros_finite(body):
    zeros, weight = torch.zeros(2, 48), torch.ones(48)
    assert torch.equal(rms_norm(zeros, weight, EPS), zeros)


@pytest.mark.parametrize("size", SIZES)
def test_bits_depend_on_the_row_alone(size, body):
    x, weight, residual = tensors([150, size])
    kept = residual.clone()
    together = rms_norm(x, weight, EPS, residual)
    for threads in (2, 3):
        cpu.set_threads(threads)
        again = kept.clone()
        assert torch.equal(rms_norm(x, weight, EPS, again), together)
        assert torch.equal(again, residual)
    for row in (0, 1, 77, 149):
        alone = rms_norm(x[row : row + 1], weight, EPS, kept[row : row + 1].clone())
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("size", SIZES)
def test_the_vector_bodies_agree_to_the_last_bit(size, vector_bodies):
    x, weight, _ = tensors([3, size])
    found = []
    for body in vector_bodies:
        cpu.load(body)
        found.append(rms_norm(x, weight, EPS))
    assert torch.equal(*found)


def test_nothing_to_do():
    x, weight, residual = tensors([2, 16])
    assert rms_norm(x[:0], weight, EPS, residual[:0]).shape == (0, 16)


WRONG = {
    "x must be .T, n.": dict(x=lambda x: x[0]),
    "weight must be": dict(weight=lambda w: w[:-1]),
    "residual must have x's shape": dict(residual=lambda r: r[:-1]),
    "float32 on the CPU": dict(x=lambda x: x.double()),
    "one is torch.float16": dict(weight=lambda w: w.half()),
    "last stride of x": dict(x=lambda x: x.t().contiguous().t()),
    "weight contiguous": dict(weight=lambda w: w.repeat_interleave(2)[::2]),
    "x's shape .4, 16. and be contiguous": dict(residual=lambda r: r.t().contiguous().t()),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_refused(sentence):
    good = dict(zip(("x", "weight", "residual"), tensors([4, 16]), strict=True))
    changed = {name: change(good[name]) for name, change in WRONG[sentence].items()}
    with pytest.raises(ValueError, match=sentence):
        rms_norm(eps=EPS, **good | changed)
