"""Calls that clients send back: read whatever their spelling, compared whatever their spacing."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.parsing.calls import Call, arguments_object, call_key, same_call
from tests.parsing.strategies import TEXTS, VALUES

OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)


@settings(deadline=None)
@given(arguments=OBJECTS, indent=st.sampled_from([None, 2]), sort=st.booleans())
def test_spelling_does_not_matter(
    arguments: dict[str, Any], indent: int | None, sort: bool
) -> None:
    compact = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
    other = json.dumps(arguments, indent=indent, sort_keys=sort)
    assert arguments_object(compact) == arguments_object(other) == arguments
    assert same_call(Call("f", compact), Call("f", other))
    assert same_call(Call("f", compact), Call("f", arguments))
    assert not same_call(Call("f", compact), Call("g", other))


@settings(deadline=None)
@given(one=OBJECTS, other=OBJECTS)
def test_different_arguments_differ(one: dict[str, Any], other: dict[str, Any]) -> None:
    plain = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert plain <= same_call(Call("f", one), Call("f", other)) <= (one == other)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        ("  ", {}),
        ('{"a": "x\ny"}', {"a": "x\ny"}),
        ("{'a': True}", {"a": True}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ("[1]", None),
        ("not JSON", None),
        ('{"a": ', None),
        ("[" * 5000 + "]" * 5000, None),
    ],
)
def test_arguments_that_models_and_clients_get_wrong(
    text: str, wanted: dict[str, Any] | None
) -> None:
    assert arguments_object(text) == wanted


def test_numbers_are_equal_by_value_and_types_matter() -> None:
    assert same_call(Call("f", '{"a": 1}'), Call("f", {"a": 1.0}))
    kinds = ["1", "true", '"1"', "null", "[1]", '{"a": 1}', "1.5"]
    assert len({call_key(Call("f", f'{{"a": {kind}}}')) for kind in kinds}) == len(kinds)


def test_what_is_no_object_is_compared_as_text() -> None:
    assert same_call(Call("f", "oops"), Call("f", "oops"))
    assert not same_call(Call("f", "oops"), Call("f", " oops"))
    assert not same_call(Call("f", "{}"), Call("f", "oops"))


def test_what_is_not_json_is_like_nothing() -> None:
    deep: Any = {}
    for _ in range(10_000):
        deep = {"a": deep}
    for arguments in (deep, {"a": object()}):
        assert call_key(Call("f", arguments)) is None
        assert not same_call(Call("f", arguments), Call("f", arguments))
