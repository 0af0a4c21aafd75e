"""Clairvoyant eviction and LRU against exhaustive search on tiny caches."""

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.messages import unpack
from radixserve.simulate.optimum import lru, optimum
from radixserve.simulate.tokens import Call, Encoder
from radixserve.simulate.workloads import read
from tests.simulate.sets import DATA, call, needs_data, table

Prefix = tuple[int, ...]
PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=7)


def prefixes(one: Call, page: int) -> list[Prefix]:
    tokens = unpack(one.kept)
    return [tuple(tokens[:end]) for end in range(page, len(tokens) + 1, page)]


def best(calls: list[Call], page: int, pages: int) -> int:
    """Most tokens that any order of evicting leaves hits, by trying all."""
    served = [c for c in calls if len(prefixes(c, page)) <= pages]

    @lru_cache(None)
    def after(at: int, cached: frozenset[Prefix]) -> int:
        if at == len(served):
            return 0
        path = prefixes(served[at], page)
        reusable = path[: (served[at].prompt_tokens - 1) // page]
        hits = page * sum(prefix in cached for prefix in reusable)
        return hits + max(after(at + 1, state) for state in rooms(cached, path))

    def rooms(cached: frozenset[Prefix], path: list[Prefix]) -> set[frozenset[Prefix]]:
        """All caches with `path` in them that evicting leaf after leaf can lead to."""
        found, todo = set(), {cached | frozenset(path)}
        while todo:
            state = todo.pop()
            if len(state) <= pages:
                found.add(state)
                continue
            inner = {prefix[:-page] for prefix in state}
            todo |= {state - {leaf} for leaf in state - inner - frozenset(path)}
        return found

    return after(0, frozenset())


def least_recent(calls: list[Call], page: int, pages: int) -> int:
    """LRU by the book: a list of prefixes by last use, the oldest leaf goes."""
    used: dict[Prefix, int] = {}
    hits = 0
    for time, one in enumerate(calls):
        path = prefixes(one, page)
        if len(path) > pages:
            continue
        hits += page * sum(p in used for p in path[: (one.prompt_tokens - 1) // page])
        used |= dict.fromkeys(path, time)
        while len(used) > pages:
            inner = {prefix[:-page] for prefix in used}
            del used[
                min((p for p in used if p not in inner and p not in path), key=used.__getitem__)
            ]
    return hits


@pytest.mark.parametrize("page", [1, 2])
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(prompts=PROMPTS, pages=st.integers(2, 6))
def test_nothing_beats_the_optimum(page: int, prompts: list[list[int]], pages: int) -> None:
    calls = [call(prompt, prompt[:2]) for prompt in prompts]
    found = optimum(calls, page, pages)
    assert found.cached_tokens == best(calls, page, pages)
    fitting = [c for c in calls if len(prefixes(c, page)) <= pages]
    assert found.prompt_tokens == sum(c.prompt_tokens for c in fitting)


@pytest.mark.parametrize("page", [1, 2])
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(prompts=PROMPTS, pages=st.integers(2, 6))
def test_lru_is_that_of_the_book(page: int, prompts: list[list[int]], pages: int) -> None:
    calls = [call(prompt, prompt[:2]) for prompt in prompts]
    assert lru(calls, page, pages).cached_tokens == least_recent(calls, page, pages)


def test_it_knows_what_comes_back() -> None:
    calls = [call([k, k, k]) for k in (1, 2, 3, 1, 2, 3)]
    assert lru(calls, 1, 6).cached_tokens == 0
    assert optimum(calls, 1, 6).cached_tokens == 5  # the last pages, then one of six


@needs_data
@pytest.mark.parametrize("name", ["mmlu_val", "generative_agents", "tot_text", "llm_judge"])
def test_lru_figures_are_those_of_the_published_table(name: str) -> None:
    calls = list(Encoder(outputs=False).stream(read(DATA / name)))
    rows = table("Text sets, LRU, 16-token blocks, hit % by capacity in tokens")
    published = rows[f"{name}/file"][2:5]
    assert [f"{100 * lru(calls, 16, k * 64).rate:.1f}" for k in (4, 8, 16)] == published
