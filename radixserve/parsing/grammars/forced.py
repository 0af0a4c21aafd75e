"""A grammar of tool calls, for answers that have to be calls (`tool_choice` "required" or a name).

In the model's own format where a marker begins its calls, so that the next turn's prompt, which the
template prints in that format, has the same tokens; else, and where a schema cannot be enforced in
that format, as bare JSON.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from radixserve.parsing.format import Format, JsonCalls, PythonCalls
from radixserve.parsing.formats import FORMATS
from radixserve.parsing.grammars.calls import MOST_CALLS, call_rules, json_rules, with_break
from radixserve.parsing.grammars.lark import Lark
from radixserve.parsing.grammars.schema import Unenforceable
from radixserve.parsing.tools import Tool


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
    if format is not None and _has_own(format):
        with suppress(Unenforceable):
            return Forced(_own(format, tools, several, Lark(special_tokens)), format)
    return Forced(_bare(tools, several), FORMATS["json"])


def _has_own(format: Format) -> bool:
    """Whether an answer of nothing but calls is known to be written like that."""
    return format.calls is not None and format.section is not None and not format.begun


def _own(format: Format, tools: Sequence[Tool], several: bool, lark: Lark) -> str:
    if isinstance(format.calls, JsonCalls):
        return _marked_json(format, format.calls, tools, several, lark)
    calls = call_rules(lark, format, tools, several=several)
    (name, (begin, *_)), *_ = calls.openers.items()
    one = f"{lark.marker(begin)} {name}"
    listed = format.many or isinstance(format.calls, PythonCalls)
    more = f" (GAP? {one}){{0,{MOST_CALLS - 1}}}" if several and not listed else ""
    return "\n".join([f"start: {one}{more}", *calls.rules, *lark.shared])


def _marked_json(
    format: Format, calls: JsonCalls, tools: Sequence[Tool], several: bool, lark: Lark
) -> str:
    assert format.section is not None, "that was asked"
    begin, end = format.section.begin[0], (format.section.end or ("",))[0]
    call = '"[" call "]"' if calls.keyed else "call"
    marked = f"{with_break(lark, begin)} {call} {with_break(lark, end)}"
    more = f' ("\\n" one_call){{0,{MOST_CALLS - 1}}}' if several else ""
    rules = [f"start: one_call{more}", f"one_call: {marked}", *json_rules(tools, calls)]
    return "\n".join(rules)


def _bare(tools: Sequence[Tool], several: bool) -> str:
    start = "start: call"
    if several:
        start = f'start: "[" call (", " call){{0,{MOST_CALLS - 1}}} "]"'
    return "\n".join([start, *json_rules(tools, JsonCalls())])
