"""A bounded memory of what left the cache, so that a miss can be explained.

Remembers digests of prefixes, not tokens: the digest of a page stands for all tokens from the start
of its namespace to the end of that page. Digests are Python's keyed 64-bit hashes, one per page,
chained; they explain and count, and never decide what is reused.
"""

from array import array
from collections import OrderedDict
from dataclasses import dataclass

from radixserve.cache.node import Node


@dataclass(frozen=True, slots=True)
class Departure:
    """Pages that left together. Times in seconds of the scheduler's clock."""

    reason: str  # "evicted" or "invalidated"
    at: float
    used_at: float  # when they were last used

    @property
    def idle(self) -> float:
        """Seconds without use before they left."""
        return self.at - self.used_at


class Ledger:
    """The last `capacity` pages that left and have not come back."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._gone: OrderedDict[int, Departure] = OrderedDict()  # by digest, oldest first

    def __len__(self) -> int:
        return len(self._gone)

    def left(self, node: Node, pages: int, now: float, reason: str) -> None:
        """The last `pages` pages of `node` are leaving the tree."""
        departure = Departure(reason, now, node.used_at)
        for digest in node.digests[-pages:]:
            self._gone.pop(digest, None)
            self._gone[digest] = departure
        while len(self._gone) > self.capacity:
            self._gone.popitem(last=False)

    def added(self, node: Node, tokens: bytes, page_bytes: int) -> None:
        """`tokens` (whole pages) were added at the end of `node`: keeps its digests."""
        assert node.parent is not None, "a root has no tokens"
        new = chain(digest(node if node.digests else node.parent), tokens, page_bytes)
        node.digests += new
        if self._gone:
            for one in new:
                self._gone.pop(one, None)

    def find(self, seed: int, rest: bytes, page_bytes: int) -> tuple[int, Departure | None]:
        """How many leading pages of `rest` once were here, and how the first of them left.

        `seed` is the digest of the path before `rest`.
        """
        first, pages = None, 0
        for at in range(0, len(rest) - page_bytes + 1, page_bytes):
            seed = hash((seed, rest[at : at + page_bytes]))
            departure = self._gone.get(seed)
            if departure is None:
                break
            first, pages = first or departure, pages + 1
        return pages, first


def digest(node: Node) -> int:
    """The digest of the path that ends at `node`."""
    return node.digests[-1] if node.digests else hash(node.namespace)


def chain(seed: int, tokens: bytes, page_bytes: int) -> "array[int]":
    """Digests of the pages of `tokens`, each of all that ends with it."""
    digests = array("q")
    for at in range(0, len(tokens), page_bytes):
        seed = hash((seed, tokens[at : at + page_bytes]))
        digests.append(seed)
    return digests
