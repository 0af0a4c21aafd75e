"""vLLM's index: `KVCacheManager` over its block pool, a map from chained block hashes.

As its scheduler uses it: the hashes are made with the `Request` (here: `key`); get_computed_blocks
and the hold on its blocks at admission; allocate_slots, which takes the least recently used blocks;
cache_blocks, which allocate_slots would call itself, so that both can be timed. The heap is frozen
behind an empty pool, as its engine core does. Imports of the engine that are not on the way are
replaced by `absent`; the manager, its pool and its hashes (sha256, the default) are vLLM's own.
"""

import gc
import itertools
from typing import Any

from bench.indexes.absent import stand_in
from bench.indexes.index import Index
from bench.indexes.shape import Ids

ABSENT = ["cv2", "llguidance", "opentelemetry", "xgrammar"]
LONGEST = 1 << 20  # tokens of one request


class Pool(Index):
    forks = False  # each prompt is a chain of hashes of its own, whatever it shares

    def __init__(self, num_pages: int, page_size: int) -> None:
        stand_in(ABSENT)
        import torch
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request

        self.page_size = page_size
        self._request = Request
        self._sampling = SamplingParams(max_tokens=1)
        hasher = get_hash_fn_by_name("sha256")
        init_none_hash(hasher)
        self._hasher = get_request_block_hasher(page_size, hasher)
        spec = FullAttentionSpec(
            block_size=page_size, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        self._manager = KVCacheManager(
            KVCacheConfig(
                num_blocks=num_pages + 1,  # the first is its null block
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            max_model_len=LONGEST,
            scheduler_block_size=page_size,
            hash_block_size=page_size,
        )
        self._ids = itertools.count()
        gc.collect()
        gc.freeze()

    def wire(self, tokens: Ids) -> list[int]:
        return tokens.tolist()

    def key(self, wire: list[int]) -> Any:
        name = str(next(self._ids))
        return self._request(name, wire, self._sampling, None, block_hasher=self._hasher)

    def acquire(self, key: Any) -> Any:
        blocks, found, _ = self._manager.get_computed_blocks(key)
        if found:
            held = self._manager.allocate_slots(key, 0, found, blocks)
            assert held is not None, "blocks that are found can be held"
        key.num_computed_tokens = found
        return key

    def take(self, handle: Any, num_tokens: int) -> None:
        new = num_tokens - handle.num_computed_tokens
        taken = self._manager.allocate_slots(handle, new, delay_cache_blocks=True)
        assert taken is not None, "nothing else is held, so everything can be evicted"

    def commit(self, handle: Any, num_tokens: int) -> None:
        self._manager.cache_blocks(handle, num_tokens)

    def release(self, handle: Any) -> None:
        self._manager.free(handle)

    def cached(self, handle: Any) -> int:
        return int(handle.num_computed_tokens)


def make(num_pages: int, page_size: int) -> Index:
    return Pool(num_pages, page_size)
