"""kv_write against the reference, bit for bit, everything around the slots untouched."""

import pytest
import torch

from radixserve_kernels import reference
from radixserve_kernels.kv_write import kv_write
from tests.kernels.paged_rows import caches_with_far_page


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
