"""radixserve's own index."""

from collections.abc import Hashable

from bench.indexes.index import Index
from bench.indexes.shape import Ids
from radixserve.cache import POLICIES, Lease, PagePool, PrefixCache, RadixTree
from radixserve.messages import Namespace


def empty_cache(num_pages: int, page_size: int) -> PrefixCache:
    return PrefixCache(PagePool(num_pages), RadixTree(page_size, POLICIES["lru"]))


Handle = tuple[Lease, bytearray]


class Ours(Index):
    """A prompt comes as the bytes of int32; a request keeps it as a bytearray, which grows."""

    def __init__(self, cache: PrefixCache, namespace: Hashable) -> None:
        self.cache = cache
        self.page_size = cache.page_size
        self._namespace = namespace

    def wire(self, tokens: Ids) -> bytes:
        return tokens.tobytes()

    def key(self, wire: bytes) -> bytearray:
        return bytearray(wire)

    def acquire(self, key: bytearray) -> Handle:
        lease = self.cache.acquire(self._namespace, key)
        assert lease is not None, "nothing is held, so everything can be evicted"
        return lease, key

    def take(self, handle: Handle, num_tokens: int) -> None:
        taken = self.cache.append(handle[0], num_tokens)
        assert taken, "nothing else is held, so everything can be evicted"

    def commit(self, handle: Handle, num_tokens: int) -> None:
        self.cache.commit(*handle, num_tokens)

    def release(self, handle: Handle) -> None:
        self.cache.release(handle[0])

    def cached(self, handle: Handle) -> int:
        return handle[0].num_tokens


def make(num_pages: int, page_size: int) -> Index:
    return Ours(empty_cache(num_pages, page_size), Namespace())
