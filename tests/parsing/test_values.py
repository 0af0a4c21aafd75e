"""Values in any spelling come out as strict JSON, in pieces that can be closed anywhere."""

import json
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.parsing.reader import Malformed, Reader
from radixserve.parsing.values import GEMMA, JSON, PYTHON, Dialect, ValueMachine, closing, to_json
from tests.parsing.reading import cut_at
from tests.parsing.strategies import CUTS, VALUES


def pieces(dialect: Dialect, parts: list[str]) -> list[str]:
    """What comes out. Raises Malformed."""
    reader, out = Reader(), list[str]()
    machine = ValueMachine(reader, dialect, out.append).run()
    for part in parts:
        reader.feed(part)
        next(machine, None)
    reader.ended = True
    for _ in machine:
        raise AssertionError("it waits for text that will not come")
    return out


@settings(deadline=None)
@given(value=VALUES, cuts=CUTS, indent=st.sampled_from([None, 1]), ascii=st.booleans())
def test_json_keeps_its_spelling(
    value: Any, cuts: list[int], indent: int | None, ascii: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    assert "".join(pieces(JSON, cut_at(text, cuts))) == text
    assert to_json(text) == text


@settings(deadline=None)
@given(value=VALUES, cuts=CUTS)
def test_python_literals(value: Any, cuts: list[int]) -> None:
    assert json.loads("".join(pieces(PYTHON, cut_at(repr(value), cuts)))) == value


@settings(deadline=None)
@given(value=VALUES)
def test_what_has_come_out_can_be_closed_at_any_time(value: Any) -> None:
    out = pieces(JSON, list(json.dumps(value)))
    for done in range(1, len(out) + 1):
        text = "".join(out[:done])
        json.loads(text + closing(text))


@settings(deadline=None)
@given(text=st.text("{}[]\"'\\,:ab01.-eE+nulltrue \n", max_size=20))
def test_whatever_is_accepted_is_json(text: str) -> None:
    for dialect in (JSON, PYTHON, GEMMA):
        written = to_json(text, dialect)
        if written is not None:
            json.loads(written)
    try:
        json.loads(text)
    except ValueError:
        return
    assert to_json(text) is not None or "E" in text or "NaN" in text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"a": "x\ny\t"}', '{"a": "x\\ny\\t"}'),  # raw control characters
        ('{"a": "it\\\'s \\d"}', '{"a": "it\'s \\\\d"}'),  # escapes that JSON has not
        ('{"a": True, "b": None,}', '{"a": true, "b": null}'),
        ("[1,2,]", "[1,2]"),
        ('"\\ud83d\\ude00"', '"\\ud83d\\ude00"'),
        ('{"a":\u00a01}', '{"a": 1}'),  # a space that JSON has not
    ],
)
def test_what_models_get_wrong_is_put_right(text: str, wanted: str) -> None:
    assert to_json(text) == wanted
    json.loads(wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("('a', 1_000, 0x1F, .5, +2, 1e3)", ["a", 1000, 31, 0.5, 2, 1000.0]),
        ("'''a'b''' ", "a'b"),
        (r"'\x41\u00e9\U0001F600\'\"\d'", "Aé😀'\"\\d"),
        (r"'\ud800\U0000d800'", "\ud800\ud800"),
        ("+" + "1" * 500, int("1" * 500)),
    ],
)
def test_python_spellings(text: str, wanted: Any) -> None:
    written = to_json(text, PYTHON)
    assert written is not None
    assert json.loads(written) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            '{a b:<|"|>x,}"y<|"|>, c:{d:[1,true,null]}}',
            {"a b": 'x,}"y', "c": {"d": [1, True, None]}},
        ),
        ('{<|"|>k:<|"|>:1}', {"k:": 1}),
        ("{city:New York,n:-1e-05}", {"city": "New York", "n": -1e-05}),
    ],
)
def test_gemma_spellings(text: str, wanted: Any) -> None:
    written = to_json(text, GEMMA)
    assert written is not None
    assert json.loads(written) == wanted


REFUSED = [
    "{",
    '{"a"}',
    '{"a": }',
    "[1 2]",
    "{1: 2}",
    "nul",
    "NaN",
    "Infinity",
    "01",
    "1.",
    '"a',
    "",
]


@pytest.mark.parametrize("text", [*REFUSED, "[)", "{} {}", "1" * 2000, "[" * 200 + "]" * 200])
def test_what_is_no_json_is_refused(text: str) -> None:
    assert to_json(text) is None


def test_a_machine_refuses_as_soon_as_it_can() -> None:
    reader = Reader()
    machine = ValueMachine(reader, JSON, lambda text: None).run()
    reader.feed('{"a": ' + string.ascii_letters + ",")
    with pytest.raises(Malformed):
        next(machine)
