"""Raw text becomes a value of a kind that the tool's schema allows."""

import json
from typing import Any

import pytest

from radixserve.parsing.tools import Tool, typed


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, {"string", "array"}),
        ({"oneOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}, {"number", "null"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "#/$defs/none"}, set()),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": True}, {"boolean"}),
        ({"properties": {}}, {"object"}),
        ({"type": "dict"}, {"object"}),
        ({"description": "anything"}, set()),
        (True, set()),
    ],
)
def test_kinds_of_a_schema(schema: Any, kinds: set[str]) -> None:
    defs = {"n": {"type": "number"}, "loop": {"$ref": "#/$defs/loop"}}
    tool = Tool("f", {"properties": {"x": schema}, "$defs": defs})
    assert tool.kinds("x") == kinds
    assert tool.kinds("y") == Tool("f").kinds("x") == set()


@pytest.mark.parametrize(
    ("text", "kinds", "wanted"),
    [
        ("007", ["string"], "007"),
        (" 7\n", ["integer"], 7),
        ("7", ["integer", "string"], 7),
        ("7.0", ["integer"], 7.0),
        ("7.5", ["integer"], "7.5"),
        ("1e20", ["number"], 1e20),
        ("True", ["boolean"], True),
        ("true", ["string"], "true"),
        ("None", ["string", "null"], None),
        ("null", ["string"], "null"),
        ('{"a": [1]}', ["object"], {"a": [1]}),
        ("{'a': None}", ["object"], {"a": None}),
        ("[1]", ["object"], "[1]"),
        ('{"a": 1}', ["string"], '{"a": 1}'),
        ("x\n", ["integer"], "x\n"),
        ("12", [], 12),
        ("012", [], "012"),
        ('"quoted"', [], '"quoted"'),
        ("", ["object"], ""),
    ],
)
def test_typed(text: str, kinds: list[str], wanted: Any) -> None:
    value = json.loads(typed(text, frozenset(kinds)))
    assert (type(value), value) == (type(wanted), wanted)
