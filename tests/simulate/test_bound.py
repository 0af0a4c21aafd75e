"""The bound against a dictionary of all prefixes, which shares no code with it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.bound import Prefixes
from radixserve.messages import unpack
from radixserve.simulate.bound import InfiniteCache, bound
from tests.simulate.sets import call

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=9)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=12))
def test_it_is_what_a_dictionary_of_prefixes_finds(
    streams: list[tuple[list[int], list[int]]],
) -> None:
    calls = [call(prompt, output) for prompt, output in streams]
    prefixes, kept, cached = Prefixes(), set(), 0
    for one in calls:
        tokens, prompt = unpack(one.kept), unpack(one.prompt)
        # `Prefixes` keeps what it is asked, so hits are asked of what came before.
        hits = max((_common(prompt, list(other)) for other in kept), default=0)
        assert min(hits, len(prompt) - 1) == min(_found(prefixes, tokens), len(prompt) - 1)
        cached += min(hits, len(prompt) - 1)
        kept.add(tuple(tokens))
    found = bound(calls)
    assert found.cached_tokens == cached and found.requests == len(calls)
    assert found.prompt_tokens == sum(len(prompt) for prompt, _ in streams)
    distinct = {tuple(tokens[:n]) for tokens in kept for n in range(1, len(tokens) + 1)}
    assert found.distinct == len(distinct)


def _common(a: list[int], b: list[int]) -> int:
    equal = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        equal += 1
    return equal


def _found(prefixes: Prefixes, tokens: list[int]) -> int:
    """All that matches: one more token keeps the trie from leaving the last one out."""
    return prefixes.add([*tokens, object()])


def test_namespaces_share_nothing() -> None:
    cache = InfiniteCache()
    tokens = call([1, 2, 3]).prompt
    assert [cache.add(name, tokens) for name in "aba"] == [0, 0, 3]
    assert cache.tokens == 6


def test_the_last_prompt_token_is_never_a_hit_and_the_last_of_an_answer_never_kept() -> None:
    found = bound([call([1, 2], [3, 4]), call([1, 2], [3, 4]), call([1, 2, 3, 4], [5])])
    assert found.cached_tokens == 0 + 1 + 3 and found.rate == 4 / 8
    assert found.longest == 5 and bound([]).rate == 0.0
