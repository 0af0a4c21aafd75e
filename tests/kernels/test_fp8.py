"""The fp8 device functions, bit for bit against torch's float8 and exact arithmetic."""

import pytest
import torch
import triton
import triton.language as tl

from radixserve_kernels import reference
from radixserve_kernels.fp8 import e4m3_to_half, quantise_e4m3, to_e4m3

ALL_CODES = torch.arange(256, dtype=torch.uint8)
VALUES = ALL_CODES.view(torch.float8_e4m3fn).double()
FP8 = dict(enable_fp_fusion=False)


@triton.jit
def decode_kernel(CODE, OUT):
    i = tl.arange(0, 256)
    tl.store(OUT + i, e4m3_to_half(tl.load(CODE + i)))


@triton.jit
def encode_kernel(X, OUT, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(OUT + i, to_e4m3(tl.load(X + i)))


@triton.jit
def quantise_kernel(X, CODES, SCALE, ROWS: tl.constexpr, SIZE: tl.constexpr):
    row = tl.arange(0, ROWS)
    at = row[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    codes, scale = quantise_e4m3(tl.load(X + at))
    tl.store(CODES + at, codes)
    tl.store(SCALE + row, scale)


def encoded(x):
    """to_e4m3 of x, whose length is a multiple of 16,384."""
    out = torch.full(x.shape, 77, dtype=torch.uint8, device=x.device)
    encode_kernel[(x.numel() // 16384,)](x, out, BLOCK=16384, **FP8)
    return out


def quantised(x):
    codes = torch.full(x.shape, 77, dtype=torch.uint8, device=x.device)
    scale = torch.empty(len(x), device=x.device)
    quantise_kernel[(1,)](x, codes, scale, ROWS=len(x), SIZE=x.shape[1], **FP8)
    return codes, scale


def test_every_code_decodes_exactly(device):
    out = torch.empty(256, dtype=torch.float16, device=device)
    decode_kernel[(1,)](ALL_CODES.to(device), out, **FP8)
    got = out.cpu().double() * 256
    assert torch.equal(got.isnan().nonzero().flatten(), torch.tensor([0x7F, 0xFF]))
    finite = ~got.isnan()
    assert torch.equal(got[finite], VALUES[finite])
    assert torch.equal(got.signbit()[finite], VALUES.signbit()[finite])


@pytest.mark.parametrize("low", [0, 1, 0xFFFF])
def test_every_upper_half_of_a_float32_encodes_as_torch_does(low, device):
    """Rounding looks at the upper 16 bits, and at whether any of the lower is set."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32) * 2**16 + low
    x = bits.view(torch.float32)
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    expected = torch.where(x.isfinite(), expected, 0x7F).to(torch.uint8)
    assert len(expected.unique()) == 255
    assert torch.equal(encoded(x.to(device)).cpu(), expected)


def test_midpoints_and_their_neighbours_round_to_the_nearest(device):
    codes = ALL_CODES[:0x7E]
    below, above = VALUES[:0x7E].float(), VALUES[1:0x7F].float()
    middle = (below + above) / 2
    infinity = torch.tensor(torch.inf)
    cases = [middle, middle.nextafter(-infinity), middle.nextafter(infinity), below, above]
    even = codes + codes % 2
    expected = torch.cat([even, codes, codes + 1, codes, codes + 1])
    x = torch.zeros(16384)
    x[: len(expected)] = torch.cat(cases)
    assert torch.equal(encoded(x.to(device)).cpu()[: len(expected)], expected)
    assert torch.equal(encoded(-x.to(device)).cpu()[: len(expected)], expected + 0x80)


def test_scales_are_the_least_powers_of_two_that_fit(device):
    largest = torch.tensor([448.0, 448.00003, 1.0, 1.75, 1.7500001, 3e38, 2**-92, 2e-38, 1e-40])
    exponents = [0, 1, -8, -8, -7, 120, -100, -100, -100]
    x = torch.zeros(16, 32)
    x[: len(largest), 5] = -largest
    x[: len(largest), 7] = largest / 3
    codes, scale = (t.cpu() for t in quantised(x.to(device)))
    assert scale.tolist() == [2.0**e for e in exponents] + [1.0] * 7
    assert (codes[9:] == 0).all()
    assert codes[:5, 5].tolist() == [0xFE, 0xF6, 0xF8, 0xFE, 0xF6]
    back = reference.dequantised(codes, scale)[:7, 5].double()
    torch.testing.assert_close(back, -largest[:7].double(), rtol=1 / 16, atol=0)


def test_rows_of_all_magnitudes_equal_the_reference(device):
    generator = torch.Generator().manual_seed(0)
    for exponents in range(-140, 128, 4):
        x = torch.randn(16, 64, generator=generator) * torch.randn(16, 64, generator=generator)
        x = (x.double() * 2.0 ** (exponents + torch.arange(16)[:, None] / 4)).float()
        codes, scale = (t.cpu() for t in quantised(x.to(device)))
        expected = reference.quantised(x)
        assert torch.equal(codes, expected[0]) and torch.equal(scale, expected[1])


def test_what_is_not_finite_does_not_reach_the_rest_of_its_row(device):
    x = torch.ones(16, 32)
    x[3, 4], x[5, 6], x[7, 8], x[9] = torch.inf, -torch.inf, torch.nan, torch.inf
    codes, scale = (t.cpu() for t in quantised(x.to(device)))
    assert codes[3, 4] == codes[5, 6] == codes[7, 8] == 0x7F and (codes[9] == 0x7F).all()
    assert (scale == torch.where(torch.arange(16) == 9, 1.0, 2.0**-8)).all()
    back = reference.dequantised(codes, scale)
    assert torch.equal(back.isnan(), ~x.isfinite())
    assert (back[x == 1] == 1).all()
