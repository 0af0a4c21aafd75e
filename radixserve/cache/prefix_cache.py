"""Who owns each page: the pool (free), the tree (cached), or one lease (being written).

Four functions move pages, and no others: `append` (pool -> lease), `commit` (lease -> tree),
`release` (lease -> pool) and `_take_back` (tree -> pool). The scheduler is the only caller.

    a lease's pages, in token order (append-only: what a reader was told stays true)
    |<------- committed ------->|<----- own ----->|
    | the tree's, or duplicates |  being written  |
    |<------------- ceil(num_tokens / page_size) ->|
"""

from collections.abc import Hashable

from radixserve.cache.pages import PagePool
from radixserve.cache.radix import Node, RadixTree, Tokens


class Lease:
    """A request's right to its pages.

    `node` stands for the first `committed` pages' tokens and is held by this lease. Where another
    request gave the same tokens to the tree first, this lease's own page stays in `pages` and in
    `duplicates` until release: no reader of the page table is ever surprised.
    """

    __slots__ = (
        "committed",
        "duplicates",
        "namespace",
        "node",
        "num_tokens",
        "pages",
        "priority",
        "released",
    )

    def __init__(
        self, namespace: Hashable, node: Node, pages: list[int], num_tokens: int, priority: int
    ) -> None:
        self.namespace = namespace
        self.priority = priority  # of what it uses, to the eviction policy of that name
        self.node = node
        self.pages = pages
        self.committed = len(pages)
        self.num_tokens = num_tokens
        self.duplicates: list[int] = []
        self.released = False

    @property
    def own(self) -> list[int]:
        """The pages that this lease owns."""
        return self.duplicates + self.pages[self.committed :]


class PrefixCache:
    """Pages for requests, and the prefixes they leave behind for others."""

    def __init__(self, pool: PagePool, tree: RadixTree) -> None:
        self.pool = pool
        self.tree = tree
        self.page_size = tree.page_size
        self.leases: set[Lease] = set()
        self.evicted_pages = 0

    @property
    def available(self) -> int:
        """Pages that are free or can be freed by eviction."""
        return len(self.pool) + self.tree.reclaimable

    def num_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def acquire(
        self, namespace: Hashable, tokens: Tokens, headroom: int = 0, *, priority: int = 0
    ) -> Lease | None:
        """A lease on the longest cached prefix of `tokens` (int32 bytes), or None.

        At least one token is left to compute, since its logits are wanted. None, and nothing is
        changed, if the pages for the rest and `headroom` more could not be had now.
        """
        total = len(tokens) // 4
        node, pages = self.tree.match(namespace, tokens, self._limit(total))
        self.tree.hold(node)
        if self.num_pages(total) - len(pages) + headroom > self.available:
            self.tree.drop(node)
            return None
        self.tree.touch(node, hit=bool(pages), priority=priority)
        lease = Lease(namespace, node, pages, len(pages) * self.page_size, priority)
        self.leases.add(lease)
        return lease

    def peek(self, namespace: Hashable, tokens: Tokens) -> int:
        """How many tokens `acquire` would find; changes nothing."""
        limit = self._limit(len(tokens) // 4)
        return self.tree.peek(namespace, tokens, limit) * self.page_size

    def advance(self, lease: Lease, tokens: Tokens) -> int:
        """Take up what others have committed below a lease that owns no open page.

        Returns how many tokens of `tokens` that is; the lease then covers them.
        """
        if lease.committed < len(lease.pages):
            return 0
        limit = self._limit(len(tokens) // 4)
        node, pages = self.tree.descend(lease.node, tokens, lease.committed, limit)
        if pages:
            self._move(lease, node)
            self.tree.touch(node, hit=True, priority=lease.priority)
            lease.pages += pages
            lease.committed = len(lease.pages)
            lease.num_tokens = lease.committed * self.page_size
        return len(pages) * self.page_size

    def append(self, lease: Lease, num_tokens: int) -> bool:
        """Pages for `num_tokens` tokens in all. False, and nothing is changed: there are none."""
        assert not lease.released, "a released lease gets no pages"
        short = self.num_pages(num_tokens) - len(lease.pages)
        if short > self.available:
            return False
        if short > 0:
            self._evict(short - len(self.pool))
            lease.pages += self.pool.take(short)
        lease.num_tokens = max(lease.num_tokens, num_tokens)
        return True

    def commit(self, lease: Lease, tokens: Tokens, num_tokens: int) -> None:
        """Give the full pages of the first `num_tokens` of `tokens`, all written, to the tree."""
        full = num_tokens // self.page_size
        if full <= lease.committed:
            return
        start, page_bytes = lease.committed, self.tree.page_bytes
        pages = lease.pages[start:full]
        span = bytes(tokens[start * page_bytes : full * page_bytes])
        node, found = self.tree.insert(lease.node, span, pages)
        lease.duplicates += pages[:found]
        lease.committed = full
        self._move(lease, node)

    def release(self, lease: Lease) -> None:
        """End a lease: its own pages become free, what it committed becomes evictable."""
        if lease.released:
            return
        lease.released = True
        self.leases.remove(lease)
        self.pool.give(lease.own)
        self.tree.touch(lease.node, hit=False, priority=lease.priority)
        self.tree.drop(lease.node)

    def discard(self, lease: Lease) -> None:
        """End a lease whose K/V are not to be used: a release, and its path is evicted.

        What others hold stays; so does a trunk with other branches, which is older than this lease.
        """
        if not lease.released:
            self.release(lease)
            self._take_back(self.tree.prune(lease.node))

    def _evict(self, count: int) -> None:
        if count > 0:
            self._take_back(self.tree.evict(count))

    def _take_back(self, pages: list[int]) -> None:
        self.evicted_pages += len(pages)
        self.pool.give(pages)

    def _move(self, lease: Lease, node: Node) -> None:
        if node is not lease.node:
            self.tree.hold(node)
            self.tree.drop(lease.node)
            lease.node = node

    def _limit(self, num_tokens: int) -> int:
        return max(num_tokens - 1, 0) // self.page_size
