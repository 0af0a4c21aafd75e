"""What every index under test can do, and the work that is timed on it."""

import gc
import random
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from bench.indexes import shape
from bench.indexes.shape import Ids

Samples = dict[str, list[int]]  # operation -> nanoseconds each
clock = time.perf_counter_ns


class Index(ABC):
    """One engine's prefix index, in the order in which a request uses it.

    `wire` is the form in which a prompt reaches the engine's scheduler and `key` what the scheduler
    makes of it once; handles and keys are the engine's own.
    """

    page_size: int
    forks = True  # whether a fork of a cached prompt changes the structure

    @abstractmethod
    def wire(self, tokens: Ids) -> Any: ...

    @abstractmethod
    def key(self, wire: Any) -> Any: ...

    @abstractmethod
    def acquire(self, key: Any) -> Any:
        """Find the longest cached prefix and its pages, and keep it from eviction."""

    @abstractmethod
    def take(self, handle: Any, num_tokens: int) -> None:
        """Pages for `num_tokens` tokens in all, at the cost of the least recently used."""

    @abstractmethod
    def commit(self, handle: Any, num_tokens: int) -> None:
        """Let others hit the first `num_tokens` tokens."""

    @abstractmethod
    def release(self, handle: Any) -> None: ...

    @abstractmethod
    def cached(self, handle: Any) -> int:
        """How many tokens `acquire` found."""

    def make_room(self, pages: int) -> None:
        """Have `pages` free, in one call; for an index that does not evict while it allocates."""
        return

    def set_aside(self, *, back: bool) -> None:
        """Take free pages out of the count, or put them back, so that a `take` has to evict."""
        return

    def insert(self, tokens: Ids) -> None:
        """A whole request: all full pages of `tokens` are cached afterwards."""
        handle = self.acquire(self.key(self.wire(tokens)))
        self.take(handle, len(tokens))
        self.commit(handle, len(tokens))
        self.release(handle)


def resident() -> int:
    """Bytes of memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


class Bench:
    """An index full of groups (or of one chain), and the operations timed on it."""

    def __init__(self, make: Callable[[int, int], Index], page_size: int, seed: int = 0) -> None:
        self._make = make  # (pages, page size) -> empty index
        self.page_size = page_size
        self._rng = random.Random(seed)
        self._groups = self._next = 0
        self._chain: Ids = shape.draw(0, 0)

    def build(self, groups: int) -> dict[str, float]:
        """Fill an index of exactly the size that `groups` groups need."""
        self._groups = self._next = groups
        prompts = (path for group in range(groups) for path in shape.paths(group))
        tokens = groups * shape.GROUP_TOKENS
        return self._fill(prompts, tokens, groups * shape.GROUP_LEAVES)

    def build_chain(self, depth: int) -> dict[str, float]:
        """Fill an index with a prompt of `depth` pages and, in a tree, a fork at each of them."""
        pages = depth + depth - 1
        return self._fill(self._chain_prompts(depth), pages * self.page_size, depth)

    def _chain_prompts(self, depth: int) -> Iterator[Ids]:
        prompts = shape.chain(depth, self.page_size)
        self._chain = next(prompts)
        yield self._chain
        if self.index.forks:
            yield from prompts

    def _fill(self, prompts: Iterator[Ids], tokens: int, leaves: int) -> dict[str, float]:
        warm = self._make(shape.PATH // self.page_size, self.page_size)
        warm.insert(shape.draw(0, shape.PATH))  # what an engine loads once is not the index's
        gc.collect()
        before = resident()
        self.index = self._make(tokens // self.page_size, self.page_size)
        for prompt in prompts:
            self.index.insert(prompt)
        gc.collect()
        return {"tokens": tokens, "leaves": leaves, "bytes": resident() - before}

    def measure(self, work: str, count: int, seconds: float) -> Samples:
        """Time `work` `count` times, or as often as `seconds` allow; once at least."""
        samples: Samples = defaultdict(list)
        run = {
            "hit": self._hit,
            "miss": self._miss,
            "page": self._page,
            "pages": self._pages,
            "shallow": self._shallow,
            "deep": self._deep,
        }[work]
        end = time.monotonic() + seconds
        for _ in range(count):
            run(samples)
            if time.monotonic() > end:
                break
        return dict(samples)

    def _prompt(self, own: int) -> Ids:
        """A prompt with a cached prefix (of the newer half: others may have been evicted)."""
        group = self._next - 1 - self._rng.randrange((self._groups + 1) // 2)
        branch = self._rng.randrange(shape.BRANCHES)
        return shape.prefix(group, branch) + self._fresh(own)

    def _fresh(self, count: int) -> Ids:
        return shape.draw(self._rng.getrandbits(60) | 1 << 60, count)

    def _acquire(self, samples: Samples, name: str, tokens: Ids, expected: int) -> Any:
        wire = self.index.wire(tokens)
        start = clock()
        key = self.index.key(wire)
        middle = clock()
        handle = self.index.acquire(key)
        end = clock()
        found = self.index.cached(handle)
        # Tokens are random: with pages of one token a few may be equal where none is expected.
        assert 0 <= found - expected < 2 * self.page_size, f"{found} cached, expected {expected}"
        if name:
            samples["prepare"].append(middle - start)
            samples[name].append(end - middle)
        return handle

    def _release(self, samples: Samples, name: str, handle: Any) -> None:
        start = clock()
        self.index.release(handle)
        samples[name].append(clock() - start)

    def _hit(self, samples: Samples) -> None:
        handle = self._acquire(samples, "hit", self._prompt(shape.OWN), shape.PREFIX)
        self._release(samples, "release", handle)

    def _miss(self, samples: Samples) -> None:
        tokens = self._fresh(shape.PREFIX + shape.OWN)
        handle = self._acquire({"prepare": [], "miss": samples["miss"]}, "miss", tokens, 0)
        self.index.release(handle)

    def _page(self, samples: Samples) -> None:
        """One page more behind a cached prefix, in a full cache."""
        tokens = self._prompt(self.page_size)
        handle = self._acquire(samples, "", tokens, shape.PREFIX)
        self._grow(samples, "1", handle, len(tokens))
        self.index.release(handle)

    def _pages(self, samples: Samples) -> None:
        """The first prompt of a new group (128 pages of 16), and untimed the rest of its group."""
        first, *rest = shape.paths(self._next)
        self._next += 1
        handle = self._acquire(samples, "", first, 0)
        self._grow(samples, f"{len(first) // self.page_size:,}", handle, len(first))
        self.index.release(handle)
        self.index.make_room((shape.GROUP_TOKENS - shape.PATH) // self.page_size)
        for path in rest:
            self.index.insert(path)

    def _grow(self, samples: Samples, pages: str, handle: Any, num_tokens: int) -> None:
        self.index.set_aside(back=False)
        start = clock()
        self.index.take(handle, num_tokens)
        middle = clock()
        self.index.commit(handle, num_tokens)
        end = clock()
        self.index.set_aside(back=True)
        samples[f"evict {pages}"].append(middle - start)
        samples[f"commit {pages}"].append(end - middle)

    def _shallow(self, samples: Samples) -> None:
        """The first 2,000 tokens of the chain: a node per page."""
        tokens = min(shape.PREFIX, len(self._chain) - self.page_size)
        self._along(samples, "chain, 2,000 tokens", tokens)

    def _deep(self, samples: Samples) -> None:
        """The whole chain but its last page, which is left to compute."""
        self._along(samples, "chain, whole", len(self._chain) - self.page_size)

    def _along(self, samples: Samples, name: str, num_tokens: int) -> None:
        tokens = self._chain[:num_tokens] + self._fresh(self.page_size)
        timed: Samples = {"prepare": [], name: samples[name]}
        handle = self._acquire(timed, name, tokens, num_tokens)
        self._release(samples, name + ", release", handle)
