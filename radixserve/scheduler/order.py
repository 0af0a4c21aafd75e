"""Orders of the waiting requests of one tenant: each says who is tried next for admission.

Two things come before every order: preempted requests, and the oldest request once later ones went
before it for too long. `queue.py` sees to both, so an order need not: no order can starve anybody.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from sortedcontainers import SortedList

from radixserve.scheduler.waiting import BEHIND, Entry, Key, Path, Waiting, common


class Order(Protocol):
    """What `Queue` asks. It keeps no requests, only what finds one in `waiting`."""

    waiting: Waiting

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting

    def head(self) -> Entry:
        """The next to go. At least one waits, and none that was preempted."""
        ...

    def added(self, entry: Entry) -> None:
        """`entry` waits now."""

    def left(self, entry: Entry) -> None:
        """`entry` was admitted or aborted, and is no longer in `waiting`."""

    def admitted(self, entry: Entry) -> None:
        """`entry` was admitted; `left` was called before."""


class FirstCome(Order):
    """First come, first served."""

    def head(self) -> Entry:
        return self.waiting.oldest()


class Priority(Order):
    """Highest `Submit.priority`, then first come."""

    def __init__(self, waiting: Waiting) -> None:
        super().__init__(waiting)
        self._sorted: SortedList[tuple[int, int]] = SortedList()  # (-priority, arrival)

    def head(self) -> Entry:
        return self.waiting.entries[self._sorted[0][1]]

    def added(self, entry: Entry) -> None:
        if not entry.request.preempted:
            self._sorted.add((-entry.request.submit.priority, entry.arrival))

    def left(self, entry: Entry) -> None:
        if not entry.request.preempted:
            self._sorted.remove((-entry.request.submit.priority, entry.arrival))


class LongestPrefix(Order):
    """Longest cached prefix, then first come."""

    def head(self) -> Entry:
        return self.waiting.warmest()


class DepthFirst(Order):
    """In rounds over the prefix tree of all that wait: depth first, heaviest subtree first.

    A subtree is a range of the sorted prompts; it is divided when its turn comes, so a round costs
    a bisection for every subtree and nothing is ever sorted anew. Who arrives in a subtree that is
    still ahead goes with it; others wait for the next round.
    """

    def __init__(self, waiting: Waiting) -> None:
        super().__init__(waiting)
        self._ahead: list[
            tuple[Key | Path, Key | Path]
        ] = []  # ranges of prompts, the next one last

    def head(self) -> Entry:
        paths = self.waiting.paths
        while True:
            if not self._ahead:
                self._divide(0, len(paths))
            first, end = self._ahead[-1]
            low, high = paths.bisect_left(first), paths.bisect_left(end)
            if high - low == 1:
                return self.waiting.entries[paths[low][2]]
            self._ahead.pop()
            if low < high:
                self._divide(low, high)

    def _divide(self, low: int, high: int) -> None:
        """Put the subtrees of the prompts from `low` up to `high` ahead of the rest."""
        paths = self.waiting.paths
        first, last = paths[low], paths[high - 1]
        page_bytes = self.waiting.page_bytes
        depth = -1  # bytes that all have in common, whole pages; not even the namespace
        if first[0] == last[0]:
            depth = common(first[1], last[1]) // page_bytes * page_bytes
        parts = []
        while low < high:
            end = _end(paths[low], 0 if depth < 0 else depth + page_bytes)
            after = min(paths.bisect_left(end), high)
            parts.append((after - low, -low, (paths[low], end)))
            low = after
        self._ahead += [part for _, _, part in sorted(parts)]


def _end(key: Key, depth: int) -> Key | Path:
    """Behind all prompts that have the first `depth` bytes of this one, if it has as many."""
    namespace, tokens, arrival = key
    if len(tokens) < depth:
        return namespace, tokens, arrival + 1
    return namespace, tokens[:depth] + BEHIND


class Trunk(Order):
    """Stay on the trunk: whoever shares most with the last admitted, while he shares enough.

    Else the warmest, if enough of him is cached; else the oldest, who opens a new trunk.
    Enough is half of the prompt.
    """

    def __init__(self, waiting: Waiting) -> None:
        super().__init__(waiting)
        self._last: Key | None = None

    def head(self) -> Entry:
        waiting = self.waiting
        last = self._last
        if last is not None:
            around = [e for e in waiting.neighbours(last) if e is not None]
            near = [e for e in around if 2 * waiting.look_up(e) >= e.length]
            if near:
                return max(near, key=lambda e: (waiting.share(e.key, last), -e.arrival))
        warmest = waiting.warmest()
        return warmest if 2 * warmest.known >= warmest.length else waiting.oldest()

    def admitted(self, entry: Entry) -> None:
        self._last = entry.key


ORDERS: Mapping[str, Callable[[Waiting], Order]] = {
    "default": Trunk,
    "trunk": Trunk,
    "fcfs": FirstCome,
    "lpm": LongestPrefix,
    "dfs-weight": DepthFirst,
    "priority": Priority,
}
