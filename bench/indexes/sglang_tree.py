"""SGLang's index: `RadixCache` (Python), or `UnifiedRadixCache` over its Rust core.

As its scheduler uses it: match_prefix, path_device_indices and a lock at admission; insert, match
and a new lock where a chunk is cached; evict when the pool is short. Left out, so to its favour:
its page allocator (a counter here) and the table of a request's slots. Imports of the engine that
need a GPU are replaced by `absent`; the index, its tree and its tensors are SGLang's own.
"""

import functools
from array import array
from typing import Any

from bench.indexes.absent import stand_in
from bench.indexes.index import Index
from bench.indexes.shape import Ids

ABSENT = [
    "cuda",
    "flash_attn",
    "flashinfer",
    "sgl_kernel",
    "torch_memory_saver",
    "torchvision",
    "tvm_ffi",
    "xgrammar",
]
LONGEST = 1 << 20  # tokens of one prompt


class Allocator:
    """In place of SGLang's page allocator: pages are only counted, by the tree's own sizes."""

    device = "cpu"

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size

    def free(self, slots: Any) -> None: ...

    def free_segment(self, slots: Any, start_pos: int) -> None: ...


class Handle:
    """What a running request has of the tree."""

    def __init__(self, key: Any, found: int, lock: Any) -> None:
        self.key, self.found, self.lock = key, found, lock


class Tree(Index):
    """All sizes inside are in tokens, as SGLang counts."""

    def __init__(self, num_pages: int, page_size: int, core: str) -> None:
        stand_in(ABSENT)
        from sglang.srt.mem_cache import base_prefix_cache, radix_cache

        self.page_size = page_size
        self._api, self._radix = base_prefix_cache, radix_cache
        self._cache = rust(page_size) if core == "rust" else python(page_size)
        self._capacity = num_pages * page_size
        self._aside = 0
        self._slots = slots()

    def wire(self, tokens: Ids) -> Any:
        return array("q", tokens)

    def key(self, wire: Any) -> Any:
        return self._radix.RadixKey(wire)

    def acquire(self, key: Any) -> Handle:
        match = self._cache.match_prefix(self._api.MatchPrefixParams(key=key))
        node = match.last_device_node
        self._cache.path_device_indices(node)
        return Handle(key, match.device_prefix_len, self._cache.lock(node))

    def take(self, handle: Handle, num_tokens: int) -> None:
        short = num_tokens - handle.found - self._free()
        if short > 0:
            self._cache.evict(self._api.EvictParams(num_tokens=short))

    def commit(self, handle: Handle, num_tokens: int) -> None:
        key = handle.key[:num_tokens].page_aligned(self.page_size)
        assert len(key) <= LONGEST, "a slot for every token"
        self._cache.insert(self._api.InsertParams(key=key, value=self._slots[: len(key)]))
        match = self._cache.match_prefix(self._api.MatchPrefixParams(key=key))
        self._cache.path_device_indices(match.last_device_node)
        self._cache.unlock(handle.lock)
        handle.lock = self._cache.lock(match.last_device_node)

    def release(self, handle: Handle) -> None:
        self._cache.unlock(handle.lock)

    def cached(self, handle: Handle) -> int:
        return handle.found

    def make_room(self, pages: int) -> None:
        short = pages * self.page_size - self._free()
        if short > 0:
            self._cache.evict(self._api.EvictParams(num_tokens=short))

    def set_aside(self, *, back: bool) -> None:
        self._aside = 0 if back else self._aside + self._free()

    def _free(self) -> int:
        used = self._cache.evictable_size() + self._cache.protected_size()
        return self._capacity - int(used) - self._aside


@functools.cache
def slots() -> Any:
    """Slot numbers for any prompt: nobody reads them, and each node has its own copy of its part.

    One tensor for all indexes of a process, so it does not count as memory of the one measured.
    """
    import torch

    return torch.arange(LONGEST)


def python(page_size: int) -> Any:
    from sglang.srt.mem_cache.radix_cache import RadixCache

    return RadixCache.create_simulated(mock_allocator=Allocator(page_size), page_size=page_size)


def rust(page_size: int) -> Any:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    cache = UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=Allocator(page_size),
            page_size=page_size,
            tree_components=(ComponentType.FULL,),
            tree_core_backend="rust",
        )
    )
    assert type(cache.tree_core).__name__ == "RustUnifiedTreeCore", "SGLang fell back to Python"
    return cache


def make_python(num_pages: int, page_size: int) -> Index:
    return Tree(num_pages, page_size, "python")


def make_rust(num_pages: int, page_size: int) -> Index:
    return Tree(num_pages, page_size, "rust")
