"""Stop strings: exact cut, nothing leaked, nothing lost, whatever the pieces."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.tokenizer.stops import StopMatcher

AB = st.text(alphabet="ab", max_size=24)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


def run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[list[str], str]:
    matcher = StopMatcher(stops, include=include)
    out = []
    for piece in pieces:
        out.append(matcher.push(piece))
        if matcher.matched:
            return out, matcher.matched
    return [*out, matcher.flush()], ""


def expected(text: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first, found the slow way."""
    for end in range(1, len(text) + 1):
        ends = [s for s in stops if text[:end].endswith(s)]
        if ends:
            return text[: end - max(map(len, ends))]
    return text


@given(text=AB, stops=STOPS, cuts=st.lists(st.integers(0, 24), max_size=6))
def test_any_cutting_gives_the_same_text(text: str, stops: list[str], cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(c for c in cuts if c <= len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
    assert "".join(run(pieces, stops)[0]) == expected(text, stops)


@given(text=AB, stops=STOPS, cuts=st.lists(st.integers(0, 24), max_size=6))
def test_the_stop_string_itself_belongs_to_the_text_on_demand(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    borders = sorted({0, len(text), *(c for c in cuts if c <= len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
    out, matched = run(pieces, stops, include=True)
    assert "".join(out) == expected(text, stops) + matched
    assert matched == run(pieces, stops)[1]


@given(text=AB, stops=STOPS)
def test_no_more_is_held_than_may_begin_a_stop(text: str, stops: list[str]) -> None:
    if expected(text, stops) != text or any(s in text for s in stops):
        return
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(char) for char in text)
    held = text[len(shown) :]
    assert matcher.flush() == held
    assert not held or any(s.startswith(held) for s in stops)
    assert not any(s.startswith(text[i:]) for s in stops for i in range(len(shown)))


@pytest.mark.parametrize(
    ("pieces", "stops", "shown"),
    [
        (["alpha be", "ta gam", "ma delta"], ["beta gamma"], ["alpha ", "", ""]),
        (["own", " fox"], ["own fox"], ["", ""]),
        (["fizz"], ["zzz-never"], ["fi", "zz"]),
        (["x\n", "\ny"], ["\n\n"], ["x", ""]),
    ],
)
def test_examples(pieces: list[str], stops: list[str], shown: list[str]) -> None:
    assert run(pieces, stops)[0] == shown
