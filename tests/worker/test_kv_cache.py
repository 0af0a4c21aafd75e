"""The pages' memory: what a page counts, and the scales of float8 codes."""

from pathlib import Path

import pytest
import torch

from radixserve.worker.kv_cache import KVCache, page_bytes

SHAPE = {"num_layers": 3, "page_size": 4, "num_kv_heads": 2, "head_dim": 6}
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)


def make(dtype: torch.dtype) -> KVCache:
    """Five pages of random content."""
    cache = KVCache(num_pages=5, dtype=dtype, device=torch.device("cpu"), **SHAPE)
    for tensor in (*cache.pages, *cache.scales):
        tensor.copy_(torch.randint(0, 200, tensor.shape))
    return cache


@dtypes
def test_a_page_counts_all_that_is_allocated_for_it(dtype):
    cache = make(dtype)
    allocated = sum(tensor.nbytes for tensor in (*cache.pages, *cache.scales))
    assert 5 * page_bytes(dtype=dtype, **SHAPE) == allocated


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages here"
)
def test_pages_on_a_cpu_lie_in_huge_pages():
    pages = make(torch.float32).pages[0]
    assert "hg" in flags_at(pages.data_ptr())


def flags_at(address: int) -> list[str]:
    """What the kernel was told of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            low, high = (int(edge, 16) for edge in name.split("-"))
            inside = low <= address < high
        elif inside and name == "VmFlags:":
            return rest
    raise AssertionError("nothing is mapped there")


@dtypes
def test_copies_take_a_token_with_its_scales(dtype):
    cache = make(dtype)
    before = [tensor.clone() for tensor in (*cache.pages, *cache.scales)]
    cache.copy({4: 18, 18: 4, 9: 18})  # places: page 1 token 0, page 4 token 2, page 2 token 1
    for tensor, old in zip((*cache.pages, *cache.scales), before, strict=True):
        want = old.clone()
        want[1, :, :, 0], want[4, :, :, 2] = old[4, :, :, 2], old[1, :, :, 0]
        want[2, :, :, 1] = old[4, :, :, 2]
        assert torch.equal(tensor, want)


def test_scales_are_seen_as_the_codes_are():
    cache = make(torch.uint8)
    for layer in range(3):
        assert cache.key(layer).shape == (5, 4, 2, 6)
        for half, view in enumerate((cache.key_scale(layer), cache.value_scale(layer))):
            assert view.shape == (5, 4, 2) and view.dtype == torch.float32
            assert view[3, 1, 0] == cache.scales[layer][3, half, 0, 1]
    assert make(torch.float32).scales == []
