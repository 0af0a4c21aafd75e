"""The waiting requests of one tenant, sorted by arrival, by prompt, and by the rank of an order.

Sorted by (namespace, prompt), requests stand in the depth-first order of their prefix tree: all
that share a prefix are neighbours, and nobody shares more with a prompt than its two neighbours.
So the list is that tree, without nodes, and every question to it is a bisection.

`Entry.known` is kept for few, not for all. What is certain: if a cached prefix is that of any
waiting prompts, at least one of them knows it; so the largest `known` is the longest cached prefix.
It holds because whoever leaves tells his two neighbours what he knew, and because whoever is
admitted is the first to have his prompt cached, which is again told to his neighbours. The others
learn it as their neighbours go. Evictions are not told: what is known is looked up before somebody
goes first for it.
"""

from collections.abc import Callable

from msgspec.structs import astuple
from sortedcontainers import SortedList

from radixserve.cache import PrefixCache
from radixserve.messages import INT32_BYTES, Namespace
from radixserve.scheduler.request import Request

Path = tuple[tuple[str | int, ...], bytes]  # namespace, tokens (int32): sorts as the tree does
Key = tuple[tuple[str | int, ...], bytes, int]  # and the arrival, which tells equals apart

Rank = Callable[["Entry"], tuple[float, int]]  # (anything, arrival)

BEHIND = b"\xff" * INT32_BYTES  # sorts behind every token id
LOOKUPS = 16  # most entries that one search for the first looks up in the cache


def path_of(namespace: Namespace, tokens: bytes | bytearray) -> Path:
    return astuple(namespace), bytes(tokens)


def common(a: bytes, b: bytes) -> int:
    """Length of the common prefix, in bytes, by comparing ever smaller halves."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # equal up to `low`, not up to `high`
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class Entry:
    """A waiting request and what is known of its prompt, in tokens, whole pages.

    `known`: cached when last heard of, or sure to be since `source`, which runs, computes it.
    `shared`: common with the entry before it in the order of prompts.
    `came`: tokens that the engine had computed when it came.
    """

    __slots__ = ("came", "key", "known", "request", "shared", "source")

    def __init__(self, request: Request, came: int) -> None:
        self.request = request
        self.came = came
        self.key: Key = (*path_of(request.submit.namespace, request.tokens), request.arrival)
        self.known = 0
        self.shared = 0
        self.source: Request | None = None

    @property
    def arrival(self) -> int:
        return self.key[2]

    @property
    def length(self) -> int:
        return len(self.key[1]) // INT32_BYTES

    @property
    def found(self) -> int:
        """What it can use of what is `known` to be cached."""
        return min(self.known, self.request.reusable)

    @property
    def work(self) -> int:
        """Tokens that it can have neither from the cache nor from an entry before it."""
        return self.length - min(max(self.known, self.shared), self.request.reusable)


class Waiting:
    """Add and take out in O(log n). `tokens`: the sum of the entries' `work`.

    That sum counts every page once, however many wait for it: it is the size of the part of the
    waiting prompts' prefix tree that is not known to be cached.
    """

    def __init__(self, cache: PrefixCache, rank: Rank) -> None:
        self._cache = cache
        self._rank = rank
        self.page_bytes = cache.page_size * INT32_BYTES
        self.entries: dict[int, Entry] = {}  # by arrival
        self.preempted: SortedList[int] = SortedList()  # arrivals
        self.arrivals: SortedList[int] = SortedList()  # of the others
        self._ranks: SortedList[tuple[float, int]] = SortedList()  # of the others
        self.paths: SortedList[Key] = SortedList()
        self.tokens = 0

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, request: Request, came: int) -> Entry:
        entry = Entry(request, came)
        before, after = self.neighbours(entry.key)
        self.entries[entry.arrival] = entry
        self.paths.add(entry.key)
        entry.known = self._peek(entry)
        entry.shared = self._shared(entry, before)
        self.tokens += entry.work
        if after is not None:
            self._learn(after, shared=self._shared(after, entry))
        if request.preempted:
            self.preempted.add(entry.arrival)
        else:
            self.arrivals.add(entry.arrival)
            self._ranks.add(self._rank(entry))
        return entry

    def remove(self, entry: Entry) -> None:
        """It left without being admitted. Its neighbours get to know what it knew."""
        self._take_out(entry)
        self._tell(entry, entry.known, entry.source)

    def admit(self, entry: Entry) -> None:
        """It was admitted: its prompt is cached, or will be before anyone behind it needs it."""
        self._take_out(entry)
        whole = len(entry.key[1]) // self.page_bytes * self._cache.page_size
        self._tell(entry, whole, entry.request)
        self._relieve(entry)

    def oldest(self) -> Entry:
        """Of those that were not preempted; there must be one."""
        return self.entries[self.arrivals[0]]

    def first(self) -> Entry:
        """The smallest rank, of those that were not preempted; there must be one.

        Exact for what is known, unless evictions outdated more than `LOOKUPS` of the smallest
        ranks: then it is the smallest of those that were looked up, and the next call goes on.
        """
        looked_up = []
        for _ in range(min(LOOKUPS, len(self._ranks))):
            rank = self._ranks[0]
            entry = self.entries[rank[1]]
            self._look_up(entry)
            if self._rank(entry) <= rank:
                return entry
            looked_up.append(entry)
        return min(looked_up, key=self._rank)

    def neighbours(self, path: Path | Key) -> tuple[Entry | None, Entry | None]:
        """The entries between which `path` stands, or would stand; it is neither of them."""
        at = self.paths.bisect_left(path)
        after = at + 1 if at < len(self.paths) and self.paths[at] == path else at
        return (
            self.entries[self.paths[at - 1][2]] if at else None,
            self.entries[self.paths[after][2]] if after < len(self.paths) else None,
        )

    def share(self, path: Path | Key, other: Entry) -> int:
        """Tokens of `path` that it need not compute if `other` does: whole pages, never all.

        Nor more than `other` leaves to others.
        """
        if other.key[0] != path[0]:
            return 0
        size = min(common(path[1], other.key[1]), len(path[1]) - 1)
        pages = min(size // self.page_bytes, other.request.terms.store // self._cache.page_size)
        return pages * self._cache.page_size

    def work(self, namespace: Namespace, tokens: bytes, most: int) -> int:
        """What of this prompt would have to be computed for it, in tokens; it reuses `most`."""
        path = path_of(namespace, tokens)
        found = [self._cache.peek(namespace, tokens)]
        found += [self.share(path, e) for e in self.neighbours(path) if e is not None]
        return len(tokens) // INT32_BYTES - min(max(found), most)

    def _take_out(self, entry: Entry) -> None:
        before, after = self.neighbours(entry.key)
        self.tokens -= entry.work
        self.paths.remove(entry.key)
        del self.entries[entry.arrival]
        if entry.request.preempted:
            self.preempted.remove(entry.arrival)
        else:
            self.arrivals.remove(entry.arrival)
            self._ranks.remove(self._rank(entry))
        if after is not None:
            self._learn(after, shared=self._shared(after, before))

    def _tell(self, gone: Entry, known: int, source: Request | None) -> None:
        """The neighbours learn; so does the first longer one, since equals cannot use it all."""
        namespace, tokens, _ = gone.key
        longer = self.neighbours((namespace, tokens + b"\0"))[1]
        for other in (*self.neighbours(gone.key), longer):
            if other is not None:
                cached = min(known, self.share(other.key, gone))
                if cached > other.known:
                    self._learn(other, known=cached, source=source)

    def _relieve(self, admitted: Entry) -> None:
        """Whoever had a part of the admitted prompt in his `work` has it no more.

        Every page stands in the work of the first entry below it. So, from where the prompt was
        not cached: the first below its next page, which shares some pages; the first below the
        page after those, and so on. That is one bisection for each fork on the prompt's path.
        """
        namespace, tokens, _ = admitted.key
        at = admitted.known // self._cache.page_size
        while (at + 1) * self.page_bytes <= len(tokens):
            prefix = tokens[: (at + 1) * self.page_bytes]
            place = self.paths.bisect_left((namespace, prefix))
            if place == len(self.paths):
                return
            first = self.entries[self.paths[place][2]]
            if first.key[0] != namespace or not first.key[1].startswith(prefix):
                return
            cached = self.share(first.key, admitted)
            if cached > first.known:
                self._learn(first, known=cached, source=admitted.request)
            at = max(at + 1, cached // self._cache.page_size)

    def _shared(self, entry: Entry, before: Entry | None) -> int:
        return 0 if before is None else self.share(entry.key, before)

    def _look_up(self, entry: Entry) -> None:
        source = entry.source
        if source is None or source.done or source.lease is None:
            self._learn(entry, known=self._peek(entry))

    def _peek(self, entry: Entry) -> int:
        submit = entry.request.submit
        return self._cache.peek(submit.namespace, entry.key[1])

    def _learn(
        self,
        entry: Entry,
        *,
        known: int | None = None,
        shared: int | None = None,
        source: Request | None = None,
    ) -> None:
        self.tokens -= entry.work
        if known is not None:
            ranks = not entry.request.preempted
            if ranks:
                self._ranks.remove(self._rank(entry))
            entry.known, entry.source = known, source
            if ranks:
                self._ranks.add(self._rank(entry))
        if shared is not None:
            entry.shared = shared
        self.tokens += entry.work
