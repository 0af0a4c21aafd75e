"""The queue against models that look at everything: orders, the bound, uncached work."""

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from radixserve.cache import PrefixCache
from radixserve.messages import Namespace, pack
from radixserve.scheduler.order import ORDERS
from radixserve.scheduler.request import Request
from tests.scheduler.room import PAGE, TRUNK, Room


def evict(cache: PrefixCache, pages: int) -> None:
    cache.pool.give(cache.tree.evict(pages, [(cache.tree.accounts.common, pages)]))


SETTINGS = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
)


class Orders(RuleBasedStateMachine):
    """Requests come, go, are aborted and preempted; the head is what a look at all would choose."""

    order = "fcfs"

    @initialize(pages=st.integers(6, 20), bound=st.sampled_from([1.0, 4.0, 1e9, 1e9]))
    def start(self, pages: int, bound: float) -> None:
        self.bound = bound
        self.room = Room(self.order, pages, bound, page=1)
        self.came: dict[Request, float] = {}
        self.steps: list[tuple[float, int]] = []  # (time, latest arrival admitted then)

    @rule(
        prompts=st.lists(
            st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=4
        ),
        salt=st.sampled_from(["", "", "a"]),
        priority=st.integers(0, 2),
    )
    def add(self, prompts: list[list[int]], salt: str, priority: int) -> None:
        for prompt in prompts:
            request = self.room.add(prompt, salt=salt, priority=priority)
            self.came[request] = self.room.now

    @rule(count=st.integers(1, 4))
    def evict(self, count: int) -> None:
        evict(self.room.cache, count)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.room.waiting:
            request = data.draw(st.sampled_from(self.room.waiting))
            self.room.waiting.remove(request)
            self.room.queue.remove(request)

    @rule(times=st.integers(1, 3))
    def admit(self, times: int) -> None:
        for _ in range(times):
            head = self.room.queue.head()
            if head is None or not self.room.admit(head):
                break
            if self.steps and self.steps[-1][0] == self.room.now:
                arrival = max(head.arrival, self.steps.pop()[1])
            else:
                arrival = head.arrival
            self.steps.append((self.room.now, arrival))

    @precondition(lambda self: self.room.running)
    @rule(data=st.data(), preempt=st.booleans())
    def end(self, data: st.DataObject, preempt: bool) -> None:
        request = data.draw(st.sampled_from(self.room.running))
        self.room.end(request)
        if preempt:
            request.preempted = True
            self.room.waiting.append(request)
            self.room.queue.add(request)

    @rule(quarters=st.integers(1, 8))
    def pass_time(self, quarters: int) -> None:
        self.room.now += quarters / 4

    def overtaken(self, request: Request) -> float:
        """Seconds, from the definition: step by step."""
        ends = [*(time for time, _ in self.steps), self.room.now][1:]
        return sum(
            end - begin
            for (begin, latest), end in zip(self.steps, ends, strict=True)
            if latest > request.arrival and begin >= self.came[request]
        )

    @invariant()
    def head_is_right(self) -> None:
        if not hasattr(self, "room"):
            return
        waiting, head = self.room.waiting, self.room.queue.head()
        assert len(self.room.queue) == len(waiting)
        if not waiting:
            assert head is None
            return
        assert head in waiting
        preempted = [r for r in waiting if r.preempted]
        if preempted:
            assert head is min(preempted, key=lambda r: r.arrival)
            return
        oldest = min(waiting, key=lambda r: r.arrival)
        assert self.overtaken(oldest) == max(map(self.overtaken, waiting))
        if self.overtaken(oldest) >= self.bound:
            assert head is oldest
        else:
            self.in_order(head)

    def in_order(self, head: Request) -> None:
        waiting, cached = self.room.waiting, self.room.cached
        match self.order:
            case "fcfs":
                assert head is min(waiting, key=lambda r: r.arrival)
            case "priority":
                assert head is min(waiting, key=lambda r: (-r.submit.priority, r.arrival))
            case "lpm":
                assert cached(head) == max(map(cached, waiting))
            case "default" | "shortest-prefill":
                # Nobody waits who came earlier and has less to compute, whatever is cached of it.
                work = head.known - cached(head)
                assert all(r.arrival >= head.arrival or r.known > work for r in waiting)


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_the_head_is_what_a_look_at_all_would_choose(order: str) -> None:
    fields: dict[str, Any] = {"order": order}
    run_state_machine_as_test(type("Machine", (Orders,), fields), settings=SETTINGS)


class Work(RuleBasedStateMachine):
    """Without evictions, the uncached work is exactly the pages that nobody has computed."""

    order = "fcfs"

    @initialize(page=st.integers(1, 2))
    def start(self, page: int) -> None:
        self.page = page
        self.room = Room(self.order, page=page)

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9), salt=st.sampled_from("ab"))
    def add(self, prompt: list[int], salt: str) -> None:
        queue = self.room.queue
        expected = queue.tokens + queue.work(Namespace(salt=salt), pack(prompt))
        self.room.add(prompt, salt=salt)
        whole = len(prompt) % self.page == 0  # its last page may be wanted by another one too
        assert expected - self.page * whole <= queue.tokens <= expected

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.room.waiting:
            request = data.draw(st.sampled_from(self.room.waiting))
            self.room.waiting.remove(request)
            self.room.queue.remove(request)

    @rule()
    def admit(self) -> None:
        head = self.room.queue.head()
        if head is not None:
            assert self.room.admit(head)

    @invariant()
    def tokens_are_right(self) -> None:
        if not hasattr(self, "room"):
            return
        tokens, pages, own = 0, set(), set()
        for request in self.room.waiting:
            namespace, prompt = request.submit.namespace, bytes(request.tokens)
            cut = (request.known - 1) // self.page  # pages that need not be computed by itself
            tokens += request.known - cut * self.page
            known = self.room.cached(request) // self.page
            pages |= {(namespace, prompt[: n * self.page * 4]) for n in range(known + 1, cut + 1)}
            own.add((namespace, prompt))
        assert self.room.queue.tokens == tokens + self.page * len(pages - own)


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_uncached_work_counts_every_page_once(order: str) -> None:
    fields: dict[str, Any] = {"order": order}
    run_state_machine_as_test(type("Machine", (Work,), fields), settings=SETTINGS)


@pytest.mark.parametrize("seed", range(8))
def test_longest_prefix_is_exact_whatever_is_evicted_or_aborted(seed: int) -> None:
    """A longer random walk than Hypothesis draws: a dozen wait, prefixes come and go."""
    rng = random.Random(seed)
    room = Room("lpm", pages=40, page=1)
    for _ in range(400):
        while len(room.waiting) < 12:
            room.add([rng.randrange(2) for _ in range(rng.randrange(1, 12))])
        head = room.queue.head()
        assert head is not None
        assert room.cached(head) == max(map(room.cached, room.waiting))
        match rng.randrange(5):
            case 0:
                evict(room.cache, rng.randrange(1, 12))
            case 1 | 2:
                request = head if rng.randrange(2) else rng.choice(room.waiting)
                room.waiting.remove(request)
                room.queue.remove(request)
            case 3:
                room.admit(rng.choice(room.waiting))
            case 4 if room.running:
                room.end(rng.choice(room.running))


def test_an_admission_relieves_those_that_share_at_any_depth() -> None:
    room = Room("fcfs", page=1)
    for prompt in ([5, 1], [5, 5, 1], [5, 5, 5, 1]):
        room.add(prompt)
    last = room.add([5, 5, 5, 5])
    assert room.queue.tokens == 7
    room.admit(last)
    assert room.queue.tokens == 3


def depth_first(requests: list[Request]) -> list[Request]:
    """Sorted prompts of one namespace, heaviest subtree first, by looking at all of them."""
    if len(requests) < 2:
        return requests
    size = 4 * PAGE
    first, last = requests[0].tokens, requests[-1].tokens
    depth = 0
    while len(first) >= depth + size and first[: depth + size] == last[: depth + size]:
        depth += size
    groups: dict[Any, list[Request]] = {}
    for request in requests:
        page = bytes(request.tokens[: depth + size])
        groups.setdefault(page if len(page) == depth + size else request, []).append(request)
    heaviest = sorted(groups.values(), key=len, reverse=True)
    return [request for group in heaviest for request in depth_first(group)]


@pytest.mark.parametrize("seed", range(20))
def test_depth_first_goes_into_the_heaviest_subtree(seed: int) -> None:
    rng = random.Random(seed)
    room = Room("dfs-weight")
    for _ in range(60):
        room.add([rng.randrange(2) for _ in range(rng.randrange(1, 14))])
    expected = depth_first(sorted(room.waiting, key=lambda r: (bytes(r.tokens), r.arrival)))
    assert [room.serve() for _ in range(60)] == expected


def test_depth_first_takes_arrivals_into_a_subtree_that_is_ahead() -> None:
    room = Room("dfs-weight")
    names = {
        room.add(prompt): name
        for prompt, name in [([1, 1, 1], "a"), ([1, 1, 2], "b"), ([2, 2, 1], "c"), ([3, 3], "d")]
    }
    served = names[room.serve()]
    names[room.add([1, 1, 4])] = "ahead"
    names[room.add([0, 0, 0])] = "next round"
    served += " " + " ".join(names[room.serve()] for _ in range(5))
    assert served == "a b ahead c d next round"


def test_short_requests_need_not_wait_for_long_ones_with_more_in_the_cache() -> None:
    room = Room("shortest-prefill", page=16)
    room.add([*range(2000), 0])
    room.serve()
    long = room.add([*range(2000), *range(500)])
    short = room.add([7] * 100)
    warm = room.add([*range(2000), 1])
    assert [room.serve() for _ in range(3)] == [warm, short, long]


def test_a_small_cache_is_used_up_group_by_group() -> None:
    rng = random.Random(4)
    room = Room("shortest-prefill", pages=100, page=16)
    trunks = [[rng.randrange(999) for _ in range(800)] for _ in range(10)]
    for i in range(200):
        room.add([*trunks[rng.randrange(10)], i, *range(40)])
    served = [bytes(room.serve().tokens[:3200]) for _ in range(200)]
    assert sum(a != b for a, b in pairwise(served)) == 9


def test_age_makes_up_for_work_long_before_the_bound() -> None:
    room = Room("shortest-prefill", pages=400, page=16)
    room.add([*TRUNK, 0])
    room.serve()
    cold = room.add([7] * 300)
    for count in range(10_000):
        room.add([*TRUNK, count])
        if room.serve() is cold:
            break
    computed = count * (len(TRUNK) + 1 - 32)
    assert 20_000 < computed < 262_144, "about 128 tokens for each uncached one"


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_no_call_looks_at_all_that_wait(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookups in the cache per call, with 2,000 waiting and all that is known outdated."""
    room = Room(order, pages=400, page=16)
    room.add([*TRUNK, 0])
    room.serve()
    rng = random.Random(3)
    for i in range(2000):
        room.add([*TRUNK[: rng.randrange(40)], i, *range(30)])
    evict(room.cache, 400)
    peeks = 0
    peek = PrefixCache.peek

    def counted(*arguments: Any) -> int:
        nonlocal peeks
        peeks += 1
        return peek(*arguments)

    monkeypatch.setattr(PrefixCache, "peek", counted)
    for _ in range(200):
        peeks = 0
        room.add([rng.randrange(9) for _ in range(40)])
        room.serve()
        assert peeks <= 20
