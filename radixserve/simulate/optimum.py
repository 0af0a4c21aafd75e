"""What eviction could do at best, if it knew the future; and plain LRU beside it.

Calls are served one after another from a cache of so many pages. The pages of the call that runs
are protected, whole pages are reused, and only leaves of the prefix tree may go. The clairvoyant
evicts the page whose next use is farthest (Belady). A page is used no later than the pages below
it, so the farthest one is always a leaf; the same holds for the least recently used one.
"""

import heapq
from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from radixserve.messages import INT32_BYTES
from radixserve.simulate.tokens import Call

NEVER = 2**31 - 1


@dataclass(slots=True)
class Replay:
    """What was asked and found, in tokens, over the calls whose pages fit."""

    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class Path(NamedTuple):
    """The pages that one call leaves behind, as numbers of tree nodes, from the root down."""

    prompt_tokens: int
    reusable: int  # so many of the first pages may be hits
    nodes: "array[int]"


def optimum(calls: Iterable[Call], page_size: int, pages: int) -> Replay:
    """The most that any eviction lets a serial stream of calls hit with so many pages."""
    paths = _paths(calls, page_size, pages)
    following: dict[int, int] = {}  # node -> next call that can use it, seen from behind
    keys = []
    for number in range(len(paths) - 1, -1, -1):
        path = paths[number]
        keys.append(array("i", (-following.get(node, NEVER) for node in path.nodes)))
        for node in path.nodes[: path.reusable]:
            following[node] = number
    return _replay(paths, keys[::-1], page_size, pages)


def lru(calls: Iterable[Call], page_size: int, pages: int) -> Replay:
    """The same with the least recently used page going first."""
    paths = _paths(calls, page_size, pages)
    keys = [array("i", [number]) * len(path.nodes) for number, path in enumerate(paths)]
    return _replay(paths, keys, page_size, pages)


def _paths(calls: Iterable[Call], page_size: int, pages: int) -> list[Path]:
    """Of all calls that fit into so many pages; the others are refused."""
    size = page_size * INT32_BYTES
    nodes: dict[tuple[Hashable, bytes], int] = {}  # (parent or namespace, tokens) -> number
    paths = []
    for call in calls:
        node: Hashable = call.namespace
        kept, found = call.kept, array("i")
        for at in range(0, len(kept) - size + 1, size):
            node = nodes.setdefault((node, kept[at : at + size]), len(nodes))
            found.append(node)
        if len(found) <= pages:
            reusable = (call.prompt_tokens - 1) // page_size
            paths.append(Path(call.prompt_tokens, reusable, found))
    return paths


def _replay(paths: list[Path], keys: "list[array[int]]", page_size: int, pages: int) -> Replay:
    """Serve calls in order. A page gets its key anew at each use; the smallest goes first."""
    total, free = Replay(), pages
    current: dict[int, int] = {}  # cached node -> the call that used it last
    heap: list[tuple[int, int, int, int]] = []  # key, -depth, node, call; old entries stay
    for number, (path, key) in enumerate(zip(paths, keys, strict=True)):
        hits = 0
        for node in path.nodes:
            if node not in current:
                break
            hits += 1
        for node in path.nodes:
            current[node] = number
        free -= len(path.nodes) - hits
        while free < 0:
            _, _, node, used = heapq.heappop(heap)
            if current.get(node) == used:
                del current[node]
                free += 1
        for depth, node in enumerate(path.nodes):
            heapq.heappush(heap, (key[depth], -depth, node, number))
        total.prompt_tokens += path.prompt_tokens
        total.cached_tokens += min(hits, path.reusable) * page_size
    return total
