"""Orders of the waiting requests of one tenant: each says who is tried next for admission.

Most are ranks: a function from a waiting request to a sort key, smallest first. A rank may use what
is known to be cached, and must not get smaller as that gets less (`Waiting.first` relies on it).

Two things come before every order: preempted requests, and the oldest request once later ones went
before it for too long. `queue.py` sees to both, so an order need not: no order can starve anybody.
"""

from collections.abc import Callable

from radixserve.cache import PrefixCache
from radixserve.scheduler.waiting import BEHIND, Entry, Key, Path, Rank, Waiting, common

LONGEST_CREDIT = 262_144  # tokens computed meanwhile for which most work can be put off
HALF_CREDIT = 2048  # uncached tokens that are put off for half of that

Order = Callable[[PrefixCache], tuple[Waiting, Callable[[], Entry]]]


def first_come(entry: Entry) -> tuple[float, int]:
    """First come, first served."""
    return 0, entry.arrival


def priority(entry: Entry) -> tuple[float, int]:
    """Highest `Submit.priority`, then first come."""
    return -entry.request.submit.priority, entry.arrival


def longest_prefix(entry: Entry) -> tuple[float, int]:
    """Longest cached prefix, then first come."""
    return -entry.found, entry.arrival


def shortest_prefill(entry: Entry) -> tuple[float, int]:
    """Fewest uncached tokens first, but age makes up for work: the earliest due goes first.

    A request is due when the engine has computed so many tokens since it came: about 128 for each
    of its uncached tokens, less for each further one, never more than `LONGEST_CREDIT`. So while
    a prefix is cached, who shares it goes before who needs another, and a small cache is used up
    group by group; yet a short request need not wait for a longer one that has more in the cache.
    Time is counted in computed tokens, so the same is decided on every machine.
    """
    work = entry.length - entry.found
    return entry.came + LONGEST_CREDIT * work / (work + HALF_CREDIT), entry.arrival


def ranked(rank: Rank) -> Order:
    def order(cache: PrefixCache) -> tuple[Waiting, Callable[[], Entry]]:
        waiting = Waiting(cache, rank)
        return waiting, waiting.first

    return order


def depth_first(cache: PrefixCache) -> tuple[Waiting, Callable[[], Entry]]:
    """In rounds over the prefix tree of all that wait: depth first, heaviest subtree first."""
    waiting = Waiting(cache, first_come)
    return waiting, DepthFirst(waiting).head


class DepthFirst:
    """The rounds of `depth_first`.

    A subtree is a range of the sorted prompts; it is divided when its turn comes, so a round costs
    a bisection for every subtree and nothing is ever sorted anew. Who arrives in a subtree that is
    not yet left goes with it; others wait for the next round.
    """

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._path: list[tuple[Key | Path, Key | Path]] = []  # ranges; siblings, then children

    def head(self) -> Entry:
        paths = self._waiting.paths
        while True:
            low, high = 0, len(paths)
            if self._path:
                first, end = self._path[-1]
                low, high = paths.bisect_left(first), paths.bisect_left(end)
            if high - low == 1:
                return self._waiting.entries[paths[low][2]]
            if low < high:
                self._divide(low, high)
            else:
                self._path.pop()

    def _divide(self, low: int, high: int) -> None:
        """Put the subtrees of the prompts from `low` up to `high` ahead of the rest."""
        paths = self._waiting.paths
        first, last = paths[low], paths[high - 1]
        page_bytes = self._waiting.page_bytes
        depth = 0  # bytes by which they are told apart; 0: the namespace
        if first[0] == last[0]:
            depth = common(first[1], last[1]) // page_bytes * page_bytes + page_bytes
        parts = []
        while low < high:
            part = _subtree(paths[low], depth)
            after = paths.bisect_left(part[1])
            parts.append((after - low, -low, part))
            low = after
        self._path += [part for _, _, part in sorted(parts)]


def _subtree(key: Key, depth: int) -> tuple[Key | Path, Key | Path]:
    """The range of all prompts that have the first `depth` bytes of this one, if it has as many."""
    namespace, tokens, arrival = key
    if len(tokens) < depth:
        return key, (namespace, tokens, arrival + 1)
    return (namespace, tokens[:depth]), (namespace, tokens[:depth] + BEHIND)


ORDERS: dict[str, Order] = {
    "default": ranked(shortest_prefill),
    "shortest-prefill": ranked(shortest_prefill),
    "fcfs": ranked(first_come),
    "lpm": ranked(longest_prefix),
    "dfs-weight": depth_first,
    "priority": ranked(priority),
}
