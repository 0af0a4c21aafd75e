"""What each policy is for: who leaves first, who stays, and what the learning one learns.

Each story is told to a real cache. Agents and chats are served one request after another.
"""

from collections.abc import Iterable, Sequence

import pytest

from radixserve.cache import POLICIES, PagePool, PrefixCache, RadixTree, check, eviction
from radixserve.cache.eviction import EDGES, GHOSTS, Habit, Reuse
from radixserve.cache.lease import Terms
from tests.cache.machine import ids

PAGE = 2


def make(policy: str, num_pages: int) -> PrefixCache:
    return PrefixCache(PagePool(num_pages), RadixTree(PAGE, POLICIES[policy]))


def serve(cache: PrefixCache, tokens: Sequence[int], priority: int = 0) -> int:
    """A request alone; returns how many pages it found."""
    data = ids([*tokens])
    lease = cache.acquire("", data, terms=Terms(priority=priority))
    assert lease is not None
    found = len(lease.pages)
    assert cache.append(lease, len(tokens))
    cache.commit(lease, data, len(tokens))
    cache.release(lease)
    return found


def span(name: int, pages: int) -> list[int]:
    return [name] * (PAGE * pages)


def leaving(cache: PrefixCache) -> list[int]:
    """The first tokens of the leaves in the order in which they go."""
    gone = []
    while cache.tree.accounts.common:
        before = {node.id: node for node in cache.tree.nodes()}
        cache._take_back(cache.tree.evict(1, [(cache.tree.accounts.common, 1)]))
        check(cache)
        after = {node.id for node in cache.tree.nodes() if node.parent}
        gone += [
            int.from_bytes(node.tokens[:4], "little")
            for key, node in before.items()
            if node.parent and key not in after
        ]
    return gone


# ---- who goes first ------------------------------------------------------------------------------

# policy -> spans in the order of leaving, after 1 1 1 2 2 3 4 2 were asked for, 3 with priority
LEAVES = {
    "lru": [1, 3, 4, 2],
    "lfu": [3, 4, 1, 2],
    "slru": [3, 4, 1, 2],
    "priority": [1, 4, 2, 3],
    "fifo": [1, 2, 3, 4],
    "reuse": [3, 4, 1, 2],
}


def test_every_policy_has_its_story() -> None:
    assert set(LEAVES) == set(POLICIES)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_order_of_leaving(policy: str) -> None:
    cache = make(policy, 8)
    for name in (1, 1, 1, 2, 2, 3, 4, 2):
        serve(cache, [*span(name, 1), 0], priority=int(name == 3))
    assert leaving(cache) == LEAVES[policy]


def test_what_never_returned_is_lru_to_the_policy_that_learns() -> None:
    cache = make("reuse", 8)
    for name in (3, 1, 4, 2):
        serve(cache, [*span(name, 1), 0])
    assert leaving(cache) == [3, 1, 4, 2]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_trunk_outlives_its_leaves_and_all_can_go(policy: str) -> None:
    cache = make(policy, 12)
    for leaf in (5, 6, 7):
        serve(cache, [*span(1, 2), *span(leaf, 1), 0])
    gone = leaving(cache)
    assert gone[-1] == 1 and sorted(gone) == [1, 5, 6, 7]
    assert len(cache.pool) == 12 and not cache.tree.roots


# ---- priority ------------------------------------------------------------------------------------


def test_the_highest_priority_that_used_a_path_protects_it() -> None:
    cache = make("priority", 12)
    serve(cache, [*span(1, 1), *span(5, 1), 0], priority=2)
    serve(cache, [*span(1, 1), *span(6, 1), 0])  # splits: the trunk keeps the 2
    serve(cache, [*span(2, 1), 0], priority=1)
    serve(cache, [*span(2, 1), 0])  # a lower one takes nothing away
    serve(cache, [*span(3, 1), 0], priority=-1)
    assert leaving(cache) == [3, 6, 2, 5, 1]


def test_a_trunk_learns_the_priority_of_its_leaves() -> None:
    cache = make("priority", 12)
    serve(cache, [*span(1, 1), 0])
    serve(cache, [*span(1, 1), *span(5, 1), 0], priority=1)
    serve(cache, [*span(1, 1), *span(6, 1), 0], priority=1)
    serve(cache, [*span(2, 1), 0])
    assert leaving(cache) == [2, 5, 6, 1]


# ---- workloads -----------------------------------------------------------------------------------


def agents(names: Iterable[int], rounds: int) -> list[list[int]]:
    """All in turn, each with six pages that no other has."""
    everyone = list(names)
    return [[*span(name, 6), 0] for _ in range(rounds) for name in everyone]


def share(cache: PrefixCache, prompts: Sequence[Sequence[int]]) -> float:
    """Of the full pages of all prompts, how many were hits."""
    hits = sum(serve(cache, prompt) for prompt in prompts)
    check(cache)
    return hits / sum((len(prompt) - 1) // PAGE for prompt in prompts)


def test_agents_in_turn_in_room_for_half_of_them() -> None:
    """LRU drops each just before its turn; an optimum keeps all but two of those that fit."""
    room = 8 * 6 + 1
    assert share(make("lru", room), agents(range(1, 17), 12)) == 0
    cache = make("reuse", room)
    share(cache, agents(range(1, 17), 4))
    assert share(cache, agents(range(1, 17), 12)) > 0.35


def test_agents_that_do_not_come_back_make_room_for_others() -> None:
    cache = make("reuse", 8 * 6 + 1)
    share(cache, agents(range(1, 17), 12))
    share(cache, agents(range(21, 37), 6))
    assert share(cache, agents(range(21, 37), 12)) > 0.35


def chat_and_sweep(turns: int) -> list[tuple[bool, list[int]]]:
    """Four chats that grow by a page each turn; six one-off prompts of three pages between."""
    requests: list[tuple[bool, list[int]]] = []
    talks = {name: span(name, 2) for name in range(1, 5)}
    fresh = iter(range(100, 100 + 24 * turns))
    for turn in range(turns):
        for name, talk in talks.items():
            requests.append((True, [*talk, 0]))
            talk += span(10 * name + turn % 7, 1)
            requests += [(False, [*span(next(fresh), 3), 0]) for _ in range(6)]
    return requests


@pytest.mark.parametrize(("policy", "least", "most"), [("lru", 0.0, 0.2), ("reuse", 0.7, 1.0)])
def test_a_sweep_does_not_hurt_a_live_chat(policy: str, least: float, most: float) -> None:
    cache, hits, pages = make(policy, 64), 0, 0
    for number, (chat, prompt) in enumerate(chat_and_sweep(12)):
        found = serve(cache, prompt)
        if chat and number >= 3 * 28:  # the first three turns teach
            hits += found
            pages += (len(prompt) - 1) // PAGE
    check(cache)
    assert least <= hits / pages <= most


def test_questions_go_and_their_trunks_stay() -> None:
    """Ten subjects in turn, each with a trunk and ever new questions, in room for eight trunks."""
    prompts = [
        [*span(subject, 4), *span(1000 + 10 * number + subject, 2), 0]
        for number in range(20)
        for subject in range(1, 11)
    ]
    room = 8 * 4 + 3
    assert share(make("lru", room), prompts) == 0
    assert share(make("reuse", room), prompts) > 0.35  # two thirds of a prompt are trunk


def test_where_all_fits_nothing_is_lost() -> None:
    room = 16 * 6 + 1
    for policy in ("lru", "reuse"):
        cache = make(policy, room)
        share(cache, agents(range(1, 17), 1))
        assert share(cache, agents(range(1, 17), 6)) == 1


# ---- what reuse learns ---------------------------------------------------------------------------


def test_worth_rises_until_pages_are_due_and_is_nothing_after() -> None:
    habit = Habit()
    habit.rested, due = 8.0, 6
    habit.returned[due] = 6.0  # of eight pages six come back, all at the age of bin 6
    worth = habit.worth()
    assert len(worth) == due + 1
    assert worth == sorted(worth)
    width = EDGES[due + 1] - EDGES[due]
    assert worth[0] == pytest.approx(0.75 / (EDGES[due] + width * (1 + 0.25) / 2))
    assert worth[due] == pytest.approx(0.75 / (width * (1 + 0.25) / 2))


def test_worth_looks_only_as_far_as_it_pays() -> None:
    habit = Habit()
    habit.rested = 4.0
    habit.returned[1] = 2.0  # half come back at once
    soon = habit.worth()[0]
    habit.returned[30] = 1.0  # one more long after
    assert habit.worth()[0] == soon
    assert 0 < habit.worth()[2] < soon / 100


def test_nothing_is_worth_anything_before_something_came_back() -> None:
    habit = Habit()
    assert habit.worth() == []
    habit.rested = 100.0
    assert habit.worth() == []


def test_a_page_that_comes_back_after_its_eviction_counts_as_back() -> None:
    cache = make("reuse", 3)
    policy = cache.tree._policy
    assert isinstance(policy, Reuse)
    serve(cache, [*span(1, 2), 0])
    serve(cache, [*span(2, 2), 0])
    assert not any(any(habit.returned) for habit in policy._habits)
    assert serve(cache, [*span(1, 2), 0]) == 0
    assert sum(map(sum, (habit.returned for habit in policy._habits))) == 2
    leaf = next(node for node in cache.tree.nodes() if node.tokens[:4] == ids([1]))
    assert leaf.hits == 1, "it was asked for twice, evicted or not"


def test_a_shortened_leaf_that_grows_again_counts_as_back() -> None:
    cache = make("reuse", 6)
    policy = cache.tree._policy
    assert isinstance(policy, Reuse)
    serve(cache, [*span(1, 4), 0])
    serve(cache, [*span(2, 2), 0])  # takes two free pages and shortens the leaf by one
    serve(cache, [*span(1, 4), 0])
    back = sum(map(sum, (habit.returned for habit in policy._habits)))
    assert back == 3 + 1, "the pages that stayed, by a hit, and the one that had gone"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "GHOSTS", 4)
    cache = make("reuse", 5)
    policy = cache.tree._policy
    assert isinstance(policy, Reuse)
    for name in range(100):
        serve(cache, [*span(name, 2), 0])
        assert len(policy._ghosts) <= 4
    assert GHOSTS > 4
    serve(cache, [*span(0, 2), 0])
    assert not any(any(habit.returned) for habit in policy._habits), "long forgotten"


def test_what_was_learned_long_ago_counts_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "HALVE_AFTER", 8)
    cache = make("reuse", 100)
    policy = cache.tree._policy
    assert isinstance(policy, Reuse)
    for name in range(40):
        serve(cache, [*span(name, 1), 0])
    total = sum(habit.rested for habit in policy._habits)
    assert total == 4 + 2 + 1 + 0.5 + 0.25, "8 in the last while, half of them, a quarter, ..."


def test_a_failed_admission_begins_no_new_rest() -> None:
    cache = make("reuse", 4)
    policy = cache.tree._policy
    assert isinstance(policy, Reuse)
    serve(cache, [*span(1, 2), 0])
    before = [habit.rested for habit in policy._habits]
    assert cache.acquire("", ids([*span(1, 2), *span(2, 9)])) is None
    check(cache)
    assert [habit.rested for habit in policy._habits] == before
