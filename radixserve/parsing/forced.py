"""A grammar of tool calls, for answers that have to be calls (`tool_choice` "required" or a name).

In the model's own format where that is JSON between markers, so that the next turn's prompt, which
the template prints in that format, has the same tokens; else as bare JSON. Written in llguidance's
dialect of Lark; nothing here needs that package.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from radixserve.parsing.format import Format, JsonCalls
from radixserve.parsing.formats import FORMATS
from radixserve.parsing.tools import Tool

MOST_CALLS = 32  # of one answer
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_SHARED = ("$defs", "definitions")  # what "$ref" names from the root of a schema
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Forced(Struct, frozen=True):
    """`grammar`: what the answer must fit. `format`: the one that reads such an answer."""

    grammar: str
    format: Format


def forced_calls(
    format: Format | None,
    tools: Sequence[Tool],
    *,
    several: bool,
    special_tokens: Mapping[str, int],
) -> Forced:
    """Answers that are calls of `tools` (at least one) and nothing else.

    `several`: one call or more. `special_tokens`: token -> id; grammars name them by their ids.
    """
    own = format is not None and isinstance(format.calls, JsonCalls) and format.section is not None
    if format is None or not own:
        return Forced(_bare(tools, several), FORMATS["json"])
    assert isinstance(format.calls, JsonCalls) and format.section is not None
    begin, end = format.section.begin[0], (format.section.end or ("",))[0]
    marked = f"{marker(begin, special_tokens)} call {marker(end, special_tokens)}"
    start = (
        f'start: one_call ("\\n" one_call){{0,{MOST_CALLS - 1}}}' if several else "start: one_call"
    )
    rules = [start, f"one_call: {marked}", *call_rules(tools, format.calls)]
    return Forced("\n".join(rules), format)


def _bare(tools: Sequence[Tool], several: bool) -> str:
    start = "start: call"
    if several:
        start = f'start: "[" call (", " call){{0,{MOST_CALLS - 1}}} "]"'
    return "\n".join([start, *call_rules(tools, JsonCalls())])


def call_rules(tools: Sequence[Tool], calls: JsonCalls) -> list[str]:
    """The rules of `call`: an object for each tool."""
    names = [f"call_{i}" for i in range(len(tools))]
    rules = [f"call: {' | '.join(names)}"]
    for name, tool in zip(names, tools, strict=True):
        rules.append(f"{name}: %json {_text(_call_schema(tool, calls))}")
    return rules


def _call_schema(tool: Tool, calls: JsonCalls) -> dict[str, Any]:
    parameters = _parameters(tool)
    shared = {word: parameters.pop(word) for word in _SHARED if word in parameters}
    fields: dict[str, Any] = {
        calls.names[0]: {"const": tool.name},
        calls.arguments[0]: parameters,
    }
    if calls.keyed:
        fields = {tool.name: parameters}
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
        "x-guidance": _COMPACT,
    } | shared


def named_rules(tools: Sequence[Tool], name_end: str) -> list[str]:
    """The rules of `call`: a name, `name_end` (as a grammar has it), and the arguments."""
    names = [f"call_{i}" for i in range(len(tools))]
    rules = [f"call: {' | '.join(names)}"]
    for rule, tool in zip(names, tools, strict=True):
        schema = {"x-guidance": _COMPACT, **_parameters(tool)}
        rules.append(f"{rule}: {quoted(tool.name, {})} {name_end} %json {_text(schema)}")
    return rules


def quoted(text: str, special_tokens: Mapping[str, int]) -> str:
    """Exactly this text, or this special token."""
    return f"<[{special_tokens[text]}]>" if text in special_tokens else _text(text)


def marker(text: str, special_tokens: Mapping[str, int]) -> str:
    """A marker with the line break that templates print at its inner side."""
    if not text:
        return ""
    inner_first = text.startswith(("</", "<|/"))
    token = quoted(text, special_tokens)
    if not (text.startswith("<") and text.endswith(">")) or "|" in text:
        return token
    return f'"\\n" {token}' if inner_first else f'{token} "\\n"'


def _parameters(tool: Tool) -> dict[str, Any]:
    parameters = dict(tool.parameters or _NO_PARAMETERS)
    parameters.setdefault("type", "object")
    return parameters


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
