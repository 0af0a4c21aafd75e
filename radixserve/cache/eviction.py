"""Eviction policies: which evictable leaf goes first.

A policy gives each leaf a key when it becomes evictable; the smallest goes first, ties to the least
recently used. Keys may use what a node remembers of its use (`last_used`, `created`, `hits`,
`priority`, `kind`), which changes only while the node is held and so outside the evictable set. A
policy that learns also sees what is evicted and what comes back, and may choose by more than the
key. Every hook is O(1), the choice O(log leaves).
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixserve.cache.node import Node

# Where pages stood: the id of the node above them, and the tokens of their first page.
Place = tuple[int, bytes]

SLRU_PROTECTED_HITS = 2


class Policy:
    """Least recently used; and what the tree tells every policy."""

    def key(self, node: "Node") -> int:
        """The key of a leaf that becomes evictable; it must not change while the leaf is so."""
        return 0

    def victim(self, sources: Sequence[Any], clock: int) -> "Node":
        """The leaf that goes next, of sorted, not empty dicts (key, last use, id) -> node."""
        node: Node = min(leaves.peekitem(0) for leaves in sources)[1]
        return node

    def rested(self, node: "Node") -> None:
        """Nobody stands on `node` any more; its key is asked for next."""

    def used(self, node: "Node", clock: int, *, hit: bool) -> None:
        """`node` is held and used; `last_used` still tells of the use before."""

    def evicted(self, node: "Node", place: Place, count: int) -> None:
        """The last `count` pages of `node` leave the tree; they began at `place`."""

    def stored(self, node: "Node", place: Place, count: int, clock: int) -> None:
        """`count` pages that begin at `place` came into the tree; they now end `node`."""


class LFU(Policy):
    """Least frequently hit."""

    def key(self, node: "Node") -> int:
        return node.hits


class SLRU(Policy):
    """Segmented LRU: what was hit twice or more stays while anything else can go."""

    def key(self, node: "Node") -> int:
        return 1 if node.hits >= SLRU_PROTECTED_HITS else 0


class Priority(Policy):
    """Lowest priority first: that of the most important request that used a node."""

    def key(self, node: "Node") -> int:
        return node.priority


class FIFO(Policy):
    """Oldest span first, used or not."""

    def key(self, node: "Node") -> int:
        return node.created


# ---- reuse: learned from what comes back ---------------------------------------------------------

EDGES = (0, *sorted({ceil(2 ** (half / 2)) for half in range(2, 96)}))  # ages, two bins an octave
NEW_CHAT, ASKED_TWICE, ASKED_OFTEN, NEW_BRANCH = 0, 2, 3, 4  # kinds of leaves; 1 is between
KINDS = 5
GHOSTS = 8192  # evicted places that are remembered, the latest
HALVE_AFTER = 4096  # rests after which all that was learned counts half
RANK_AFTER = 16  # rests after which a ranking is stale


class Habit:
    """After what age the pages of one kind of leaf were asked for again, evicted or not."""

    def __init__(self) -> None:
        self.rested = 0.0  # pages
        self.returned = [0.0] * len(EDGES)  # pages, by the bin of their age

    def worth(self) -> list[float]:
        """For each bin of age: the most hits a page will earn per tick from then on.

        That is the largest share of pages that come back until some later age, over the time that
        they and those that do not come back take up until then (an index after Gittins). Ends with
        the last bin in which anything came back: older pages are worth nothing.
        """
        share = [pages / max(self.rested, 1.0) for pages in self.returned]
        last = max((b for b, part in enumerate(share) if part), default=-1)
        alive = [1.0]
        for part in share[: last + 1]:
            alive.append(max(alive[-1] - part, 0.001))
        best = []
        for start in range(last + 1):
            gain = time = most = 0.0
            for b in range(start, last + 1):
                gain += share[b]
                time += (alive[b] + alive[b + 1]) / 2 * (EDGES[b + 1] - EDGES[b])
                most = max(most, gain / time)
            best.append(most)
        return best

    def halve(self) -> None:
        self.rested /= 2
        self.returned = [pages / 2 for pages in self.returned]


class Reuse(Policy):
    """What will earn the fewest hits for the room and time it takes goes first.

    A leaf is of a kind: a new conversation, a new branch below something shared, or asked for
    once, twice, more often. For each kind we count after which age its pages are asked for again;
    ghosts, the places of evicted pages, make that count true of pages that were evicted too early.
    From the counts follows what a page of each kind and age is worth. Where questions never return
    and their trunks do, the questions go and the trunks stay; where 32 agents take turns in room
    for 16, the last to come goes and 16 stay to be hit, until they are overdue; where nothing
    was learned yet, it is LRU.
    """

    def __init__(self) -> None:
        self._habits = [Habit() for _ in range(KINDS)]
        # kind, last use, hits, pages; a plain dict would search ever longer for its oldest entry
        self._ghosts: OrderedDict[Place, tuple[int, int, int, int]] = OrderedDict()
        self._ranking: list[tuple[float, int, int, int]] = []  # worth, minus age, end of age, kind
        self._rests = 0
        self._stale_at = 0  # rests

    def key(self, node: "Node") -> int:
        return node.kind if node.kind >= 0 else self._kind(node)

    def rested(self, node: "Node") -> None:
        if node.kind >= 0:
            return  # it was held and not used: the same rest goes on
        node.kind = self._kind(node)
        self._habits[node.kind].rested += len(node.pages)
        self._rests += 1
        if self._rests % HALVE_AFTER == 0:
            for habit in self._habits:
                habit.halve()

    def used(self, node: "Node", clock: int, *, hit: bool) -> None:
        if hit and node.kind >= 0:
            self._returned(node.kind, clock - node.last_used, len(node.pages))
        node.kind = -1

    def evicted(self, node: "Node", place: Place, count: int) -> None:
        self._ghosts[place] = (self.key(node), node.last_used, node.hits, count)
        if len(self._ghosts) > GHOSTS:
            self._ghosts.popitem(last=False)

    def stored(self, node: "Node", place: Place, count: int, clock: int) -> None:
        ghost = self._ghosts.pop(place, None)
        if ghost is not None:
            kind, last_used, hits, pages = ghost
            self._returned(kind, clock - last_used, min(pages, count))
            node.hits = max(node.hits, hits + 1)

    def victim(self, sources: Sequence[Any], clock: int) -> "Node":
        if self._rests >= self._stale_at:
            self._rank()
        for _, minus_age, end, kind in self._ranking:
            for leaves in sources:
                at = leaves.bisect_left((kind, clock - end + 1))  # the oldest younger than `end`
                if at < len(leaves):
                    (found, last_used, _), node = leaves.peekitem(at)
                    if found == kind and last_used <= clock + minus_age:
                        leaf: Node = node
                        return leaf
        raise AssertionError("every kind and age has a rank")

    def _kind(self, node: "Node") -> int:
        if node.hits:
            return min(node.hits, ASKED_OFTEN)
        assert node.parent is not None, "a root is never evictable"
        return NEW_CHAT if node.parent.parent is None else NEW_BRANCH

    def _returned(self, kind: int, age: int, pages: int) -> None:
        self._habits[kind].returned[bisect_right(EDGES, age) - 1] += pages

    def _rank(self) -> None:
        """Sort the ranges of (kind, age) by worth, of equal ones the oldest first."""
        self._ranking = []
        for kind, habit in enumerate(self._habits):
            worth = habit.worth()
            for b, value in enumerate(worth):
                self._ranking.append((value, -EDGES[b], EDGES[b + 1], kind))
            self._ranking.append((0.0, -EDGES[len(worth)], EDGES[-1], kind))
        self._ranking.sort()
        self._stale_at = self._rests + RANK_AFTER


POLICIES: dict[str, Callable[[], Policy]] = {
    "lru": Policy,
    "lfu": LFU,
    "slru": SLRU,
    "priority": Priority,
    "reuse": Reuse,
    "fifo": FIFO,
}
