"""The laws of parsing, for every format, whatever the model writes and however it is cut."""

import string
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.parsing.detect import _strings
from radixserve.parsing.events import Content
from radixserve.parsing.format import Format, TaggedCalls
from radixserve.parsing.formats import FORMATS
from radixserve.parsing.harmony import TOKENS
from radixserve.parsing.parser import Parser
from radixserve.parsing.tools import Tool
from tests.parsing.reading import cut_at, read
from tests.parsing.strategies import CUTS
from tests.parsing.writing import Answer, tools_of, write

FEW = settings(max_examples=25, deadline=None)  # for each format
FEWER = settings(max_examples=10, deadline=None)
every_format = pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS.keys())
WITH_CALLS = [f for f in FORMATS.values() if f.calls or f.harmony]
MARKED = [f for f in WITH_CALLS if not f.unmarked]
with_calls = pytest.mark.parametrize("format", WITH_CALLS, ids=[f.name for f in WITH_CALLS])

WORDS = st.text(string.ascii_lowercase + "é日", min_size=1, max_size=6)
NAMES = st.text(string.ascii_lowercase + "_", min_size=1, max_size=6)
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
STRINGS = st.text("ab 1<>/\"'\\\n\t{}[]:,=é😀", max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | STRINGS
KEYED = st.dictionaries(NAMES, SCALARS, max_size=2)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | KEYED | st.lists(KEYED, max_size=2)
CALLS = st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=3))
ANSWERS = st.builds(
    Answer,
    reasoning=st.just("") | TEXTS,
    content=st.just("") | TEXTS,
    calls=st.lists(CALLS, max_size=3).map(tuple),
)
TOOLS = [Tool("f", {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}), Tool("g")]
SAMPLE = Answer(
    "One thing and another.",
    "Well.",
    (("f", {"a": 'x "y" \\ z\n é', "b": -3}), ("g", {}), ("f", {"a": "", "b": 12})),
)


def fitting(format: Format, answer: Answer) -> Answer:
    """What of `answer` the format can say."""
    thoughts = format.thoughts is not None or format.harmony
    return Answer(
        answer.reasoning if thoughts else "",
        "" if format.unmarked and answer.calls else answer.content,
        answer.calls if format.calls or format.harmony else (),
    )


def markers(format: Format) -> list[str]:
    found = list(_strings(msgspec.to_builtins(format)))
    return [s for s in found if len(s) > 1] + list(TOKENS if format.harmony else ())


def soups(format: Format) -> st.SearchStrategy[str]:
    """Texts of a format's markers and pieces of calls, in any order."""
    parts = [*string.printable[:36], *"{}[]\"'\\:,()<>|= \n", '{"a": 1}', '"name": "f"', "f(a=1)"]
    parts += ['"arguments": ', '{"name": "f", "arguments": {"a": "b"}}', "\\u00", "functions.f"]
    return st.lists(st.sampled_from(parts + 3 * markers(format)), max_size=24).map("".join)


@every_format
@FEW
@given(answer=ANSWERS, cuts=CUTS, hold=st.booleans())
def test_what_is_written_is_read_back(
    format: Format, answer: Answer, cuts: list[int], hold: bool
) -> None:
    answer = fitting(format, answer)
    pieces = cut_at(write(format, answer), cuts)
    found, complete = read(format, pieces, tools_of(answer), hold=hold)
    assert _sorted(found) == _sorted(answer)
    assert all(complete)


def _sorted(answer: Answer) -> tuple[str, str, list[tuple[str, list[tuple[str, Any]]]]]:
    """Comparable, types included: True is not 1."""
    calls = [(name, sorted(map(_typed, arguments.items()))) for name, arguments in answer.calls]
    return answer.reasoning, answer.content, calls


def _typed(item: tuple[str, Any]) -> tuple[str, str]:
    return item[0], msgspec.json.encode(item[1], order="sorted").decode()


@with_calls
@pytest.mark.parametrize("hold", [True, False])
def test_every_split_gives_the_same(format: Format, hold: bool) -> None:
    sample = fitting(format, SAMPLE)
    text = write(format, sample)
    expected = (sample, [True, True, True])
    assert read(format, text, TOOLS, hold=hold) == expected
    for place in range(len(text)):
        assert read(format, cut_at(text, [place]), TOOLS, hold=hold) == expected


@every_format
@FEW
@given(data=st.data(), hold=st.booleans(), cut=st.booleans())
def test_any_text_is_read_the_same_however_it_is_cut(
    format: Format, data: st.DataObject, hold: bool, cut: bool
) -> None:
    text = data.draw(soups(format))
    thoughts = format.thoughts.begin if format.thoughts else ()
    prompt = data.draw(st.sampled_from(("", format.begun, "<|start|>assistant", *thoughts)))
    options: dict[str, Any] = {"prompt": prompt, "hold": hold, "cut": cut}
    whole, complete = read(format, [text], TOOLS, **options)
    assert read(format, text, TOOLS, **options) == (whole, complete)
    assert read(format, cut_at(text, data.draw(CUTS)), TOOLS, **options) == (whole, complete)
    assert all(complete) or not hold


@every_format
@FEW
@given(data=st.data())
def test_without_calls_nothing_is_lost(format: Format, data: st.DataObject) -> None:
    text = data.draw(soups(format))
    if format.harmony:
        text = "." + text  # no header, so all of it is content
        text = text.replace("<|end|>", "").replace("<|call|>", "").replace("<|return|>", "")
    format = msgspec.structs.replace(format, thoughts=None, silent=())
    found, _ = read(format, [text], TOOLS)
    if not found.calls:
        assert _words(found.content, format) == _words(text, format)


def _words(text: str, format: Format) -> str:
    """Without whitespace, and without the markers of sections, which go if nothing is in them."""
    section = format.section
    for marker in (*section.begin, *section.end, "[]") if section else ():
        text = text.replace(marker, "")
    return "".join(text.split())


@every_format
@FEW
@given(text=TEXTS)
def test_plain_text_is_not_held_back(format: Format, text: str) -> None:
    parser = Parser(format, TOOLS)
    shown = ""
    for done, char in enumerate(text, start=1):
        shown += "".join(e.text for e in parser.feed(char) if isinstance(e, Content))
        behind = text[len(shown) : done]
        longest = max(map(len, markers(format)))
        assert text.startswith(shown)
        assert len(behind.rstrip()) < longest
        assert not behind.strip() or any(m.startswith(behind.strip()) for m in markers(format))
    assert shown + "".join(e.text for e in parser.finish()) == text


@every_format
@FEWER
@given(data=st.data(), hold=st.booleans())
def test_what_is_undecided_is_bounded(format: Format, data: st.DataObject, hold: bool) -> None:
    parser = Parser(format, TOOLS, hold_calls=hold)
    for char in data.draw(soups(format)) * 20:
        parser.feed(char)
        assert len(parser._reader.text) - parser._reader.pos <= 1100


@pytest.mark.parametrize("format", MARKED, ids=[f.name for f in MARKED])
@pytest.mark.parametrize("hold", [True, False])
def test_cut_off_behind_a_call_no_half_marker_is_content(format: Format, hold: bool) -> None:
    """Neither what ends calls nor what begins the next one; but what looks like neither is kept."""
    sample = fitting(format, SAMPLE)
    one = write(format, msgspec.structs.replace(sample, calls=sample.calls[:1]))
    text = write(format, sample)
    ends = format.section.end if format.section else ()
    whole = len(one) - len(ends[0] if ends else "")
    for end in range(whole, len(text) + 1):
        found, _ = read(format, [text[:end]], TOOLS, hold=hold, cut=True)
        assert found.content == sample.content
        assert read(format, text[:end], TOOLS, hold=hold, cut=True)[0] == found
    if not format.many and not format.harmony:
        found, _ = read(format, [one + " = 5"], TOOLS, hold=hold, cut=True)
        assert found.content.endswith("= 5")


@with_calls
def test_cut_off_anywhere_no_half_call_is_shown(format: Format) -> None:
    sample = fitting(format, SAMPLE)
    text = write(format, sample)
    for end in range(len(text)):
        found, complete = read(format, [text[:end]], TOOLS, cut=True)
        assert all(complete)
        assert found.calls == sample.calls[: len(found.calls)]
        assert agree(found.reasoning, sample.reasoning, format)
        assert agree(found.content, sample.content, format) or format.unmarked


def agree(found: str, whole: str, format: Format) -> bool:
    """`found` is the beginning of `whole`, or all of it and half a marker, as far as one knows."""
    rest = found.removeprefix(whole)
    half = any(marker.startswith(rest.lstrip()) for marker in markers(format))
    return half or whole.startswith(found)


@with_calls
def test_cut_off_anywhere_a_streamed_call_is_closed_and_says_so(format: Format) -> None:
    sample = fitting(format, SAMPLE)
    text = write(format, sample)
    unfinished = 0
    for end in range(len(text)):
        found, complete = read(format, text[:end], TOOLS, hold=False, cut=True)
        assert all(complete[:-1])
        whole = found.calls if all(complete) else found.calls[:-1]
        assert whole == sample.calls[: len(whole)]
        if len(whole) < len(found.calls):
            unfinished += 1
            (name, arguments), (wanted_name, wanted) = found.calls[-1], sample.calls[len(whole)]
            assert name == wanted_name
            assert arguments.keys() <= wanted.keys()
            for key, value in arguments.items():
                assert str(value).startswith(str(wanted[key])) or str(wanted[key]).startswith(
                    str(value)
                )
    assert unfinished > 20


@with_calls
def test_work_grows_with_the_text_and_not_faster(format: Format) -> None:
    calls = write(format, fitting(format, SAMPLE))
    first = next(m for m in markers(format) if m != format.name)
    for unit in (calls, calls[: len(calls) // 3], first, '{"', " ", "1"):
        short, long = (_calls_made(format, unit * (n // len(unit) + 1)) for n in (1000, 2000))
        assert long < 2.4 * short + 500


def _calls_made(format: Format, text: str) -> int:
    """How many functions run while the parser reads `text`, half of it by characters."""
    made = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    parser = Parser(format, TOOLS)
    sys.setprofile(count)
    try:
        for piece in (*text[: len(text) // 2], text[len(text) // 2 :]):
            parser.feed(piece)
        parser.finish()
    finally:
        sys.setprofile(None)
    return made


@with_calls
def test_nesting_is_bounded(format: Format) -> None:
    for depth, wanted in ((100, 1), (100_000, 0)):
        value: Any = "x"
        answer = Answer(calls=(("f", {"c": "DEEP"}),))
        text = write(format, answer)
        nested = "[" * depth + "1" + "]" * depth
        for quoted in ('"DEEP"', "'DEEP'", '<|"|>DEEP<|"|>', "DEEP"):
            text = text.replace(quoted, nested)
        found, _ = read(format, [text], [Tool("f", {"properties": {"c": {"type": "array"}}})])
        if isinstance(format.calls, TaggedCalls) and not wanted:
            ((_, arguments),) = found.calls  # too deep for an array, so it is text
            assert arguments == {"c": nested}
        else:
            assert len(found.calls) == wanted, value
