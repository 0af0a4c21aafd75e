"""kv_write against the reference, bit for bit, everything around the slots untouched."""

import pytest
import torch

from radixserve_kernels import reference
from radixserve_kernels.kv_write import kv_write
from tests.kernels.paged_rows import TOLERANCE, caches_with_far_page, fp8_caches


def tensors(num_tokens, device, *, dtype=torch.float32, kv_heads=3, head_size=64, page_size=8):
    generator = torch.Generator().manual_seed(num_tokens)
    k, v = (
        torch.randn(num_tokens, kv_heads, head_size, generator=generator).to(device, dtype)
        for _ in "kv"
    )
    num_pages = num_tokens // page_size + 3
    k_cache, v_cache = (
        torch.full((num_pages, page_size, kv_heads, head_size), -7.0, dtype=dtype, device=device)
        for _ in "kv"
    )
    slots = torch.randperm(num_pages * page_size, generator=generator)[:num_tokens].to(device)
    return k, v, k_cache, v_cache, slots


def assert_same(k, v, k_cache, v_cache, slots):
    expected = k_cache.clone(), v_cache.clone()
    reference.kv_write(k, v, *expected, slots)
    kv_write(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache, expected[0]) and torch.equal(v_cache, expected[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 37])
def test_matches_reference(num_tokens, dtype, device):
    assert_same(*tensors(num_tokens, device, dtype=dtype))


@pytest.mark.parametrize("head_size", [16, 80, 128, 256])
@pytest.mark.parametrize("page_size", [1, 16])
def test_head_and_page_sizes(head_size, page_size, device):
    assert_same(*tensors(5, device, head_size=head_size, page_size=page_size))


def test_negative_slots_are_skipped_and_int32_will_do(device):
    k, v, k_cache, v_cache, slots = tensors(20, device)
    slots[3:9] = -1
    slots[11] = -(2**31)
    k[3:9] = v[3:9] = float("nan")
    assert_same(k, v, k_cache, v_cache, slots.int())


def test_views_of_fused_projections_and_heads_first_pages(device):
    k, v, k_cache, v_cache, slots = tensors(9, device)
    fused = torch.cat([k, v], 1)
    k_cache, v_cache = (
        cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (k_cache, v_cache)
    )
    assert_same(fused[:, :3], fused[:, 3:], k_cache, v_cache, slots)


def test_nothing_to_do(device):
    k, v, k_cache, v_cache, slots = tensors(4, device)
    assert_same(k[:0], v[:0], k_cache, v_cache, slots[:0])


def test_addresses_beyond_32_bits(device):
    caches, far_pages, page_id = caches_with_far_page((16, 2, 64), torch.float16, device)
    ones = torch.ones(2, 2, 64, dtype=torch.float16, device=device)
    slots = torch.tensor([page_id * 16 + 3, page_id * 16 + 15], device=device)
    kv_write(ones, 2 * ones, *caches, slots)
    assert [cache.sum().item() for cache in caches] == [0, 0]
    for page, value in zip(far_pages, (1, 2), strict=True):
        assert torch.equal(page[[3, 15]], torch.full_like(page[:2], value))
        assert page.sum().item() == 256 * value


def fp8_tensors(num_tokens, device, **kind):
    """As `tensors`, with caches of codes, and their scales; magnitudes from 2**-20 to 2**20."""
    k, v, cache, _, slots = tensors(num_tokens, device, **kind)
    spread = torch.linspace(-14 if k.dtype is torch.float16 else -20, 14, num_tokens, device=device)
    k, v = (x * spread.exp2().to(k.dtype)[:, None, None] for x in (k, v))
    k_cache, v_cache, scales = fp8_caches(*cache.shape, device)
    return k, v, k_cache, v_cache, slots, scales


def assert_same_fp8(k, v, k_cache, v_cache, slots, scales):
    expected = k_cache.clone(), v_cache.clone(), tuple(scale.clone() for scale in scales)
    reference.kv_write(k, v, *expected[:2], slots, scales=expected[2])
    kv_write(k, v, k_cache, v_cache, slots, scales=scales)
    assert torch.equal(k_cache, expected[0]) and torch.equal(v_cache, expected[1])
    for got, want in zip(scales, expected[2], strict=True):
        assert torch.equal(got.view(torch.int32), want.view(torch.int32))
        assert int(got.isfinite().sum()) == int((slots >= 0).sum()) * k.shape[1]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256])
def test_fp8_matches_reference(head_size, dtype, device):
    assert_same_fp8(*fp8_tensors(19, device, dtype=dtype, head_size=head_size))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_fp8_values_come_back_within_half_a_step(dtype, device):
    """Three bits of mantissa: an error of 1/16; of 2**-10 scales where the scale is coarser."""
    k, v, k_cache, v_cache, slots, scales = fp8_tensors(33, device, dtype=dtype)
    kv_write(k, v, k_cache, v_cache, slots, scales=scales)
    for x, cache, scale in zip((k, v), (k_cache, v_cache), scales, strict=True):
        back = reference.dequantised(cache, scale).flatten(0, 1)[slots].double()
        step = scale.flatten(0, 1)[slots].double()[..., None]
        allowed = torch.maximum(x.double().abs() / 16, step * 2.0**-10)
        assert ((back - x.double()).abs() <= allowed).all()


def test_fp8_of_zeros_and_of_what_is_not_finite(device):
    k, v, k_cache, v_cache, slots, scales = fp8_tensors(20, device)
    k[2:5] = 0.0
    v[7, 1, 3], v[8, :, 9], v[9] = torch.inf, -torch.inf, torch.nan
    k[12:] *= 1e-38
    slots[15] = -1
    slots[16] = -(2**31)
    assert_same_fp8(k, v, k_cache, v_cache, slots.int(), scales)
    back = reference.dequantised(v_cache, scales[1]).flatten(0, 1)[slots[:15]]
    assert torch.equal(back.isnan(), ~v[:15].isfinite())


def test_fp8_views_of_fused_projections_and_heads_first_pages(device):
    k, v, k_cache, v_cache, slots, scales = fp8_tensors(9, device, page_size=1)
    fused = torch.cat([k, v], 1)
    k_cache, v_cache = (
        cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (k_cache, v_cache)
    )
    assert_same_fp8(fused[:, :3], fused[:, 3:], k_cache, v_cache, slots, scales)


WRONG = {
    "k and v must be": dict(v=lambda v: v[:-1]),
    "with k's heads": dict(k_cache=lambda c: c[:, :, :2]),
    "same shape and strides": dict(v_cache=lambda c: c[:-1]),
    "slots must be 4": dict(slots=lambda s: s[:-1]),
    "int32 or int64": dict(slots=lambda s: s.float()),
    "one dtype": dict(v=lambda v: v.half()),
    "last stride": dict(k=lambda k: k.transpose(0, 2).contiguous().transpose(0, 2)),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_refused(sentence, device):
    names = ("k", "v", "k_cache", "v_cache", "slots")
    good = dict(zip(names, tensors(4, device), strict=True))
    changed = {name: change(good[name]) for name, change in WRONG[sentence].items()}
    with pytest.raises(ValueError, match=sentence):
        kv_write(**good | changed)


WRONG_FP8 = {
    "uint8 cache and no other has scales: the cache is torch.uint8": dict(scales=lambda s: None),
    "uint8 cache and no other has scales: the cache is torch.int8": dict(
        k_cache=lambda c: c.view(torch.int8)
    ),
    "with scales k and v must both be": dict(v_cache=lambda c: c.view(torch.int8)),
    "are torch.float64": dict(k=lambda k: k.double(), v=lambda v: v.double()),
    r"scales must be \(3, 8, 3\)": dict(scales=lambda s: (s[0], s[1][:-1])),
    "same strides": dict(scales=lambda s: (s[0], s[1].contiguous())),
    "scales must be float32": dict(scales=lambda s: (s[0], s[1].view(torch.int32))),
}


@pytest.mark.parametrize("sentence", WRONG_FP8)
def test_wrong_fp8_arguments_are_refused(sentence, device):
    names = ("k", "v", "k_cache", "v_cache", "slots", "scales")
    good = dict(zip(names, fp8_tensors(4, device), strict=True))
    changed = {name: change(good[name]) for name, change in WRONG_FP8[sentence].items()}
    with pytest.raises(ValueError, match=sentence):
        kv_write(**good | changed)
