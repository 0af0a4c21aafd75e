"""Rules of the calls themselves, in each of the ways that `format.py` knows to write them."""

import html
import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from radixserve.parsing.format import (
    Format,
    JsonCalls,
    NamedCalls,
    Pair,
    PythonCalls,
    TaggedCalls,
)
from radixserve.parsing.grammars.lark import CHAR, SPACE, Lark, letters, literal, one_of
from radixserve.parsing.grammars.schema import COMPACT, SHARED, parameters
from radixserve.parsing.grammars.spelled import Spelled
from radixserve.parsing.grammars.tagged import Arguments
from radixserve.parsing.tools import Tool
from radixserve.parsing.values import JSON, PYTHON

MOST_CALLS = 32  # of one answer that has to be calls


class CallRules(Struct, frozen=True):
    """How a format's calls begin, and what comes then.

    `openers`: markers by the rule of what stands behind them. `bare`: the rule of calls without
    markers at the beginning of an answer, "" if there are none; `like_bare`: an expression of texts
    that would be read as such.
    """

    openers: dict[str, tuple[str, ...]]
    rules: list[str]
    bare: str = ""
    like_bare: str = ""


def call_rules(lark: Lark, format: Format, tools: Sequence[Tool], *, several: bool) -> CallRules:
    """The rules of `tools` in a format that has calls; `several`: where it has lists of calls.

    Raises Unenforceable.
    """
    calls = format.calls
    if isinstance(calls, NamedCalls) and calls.or_json and not lark.knows(calls.name_end[0]):
        calls = JsonCalls()  # what older models of the family write
        return CallRules(
            {"calls": _section(format).begin},
            [f"calls: GAP? {_list('call', several)}", *json_rules(tools, calls)],
        )
    match calls:
        case JsonCalls():
            return _json(lark, format, calls, tools, several)
        case NamedCalls():
            return _named(lark, format, calls, tools, several)
        case TaggedCalls():
            return _tagged(lark, format, calls, tools, several)
        case _:
            assert isinstance(calls, PythonCalls), "the format has calls"
            return _python(lark, format, tools, several)


def _section(format: Format) -> Pair:
    return format.section or Pair(())


def _end(lark: Lark, format: Format) -> str:
    end = _section(format).end
    return lark.marker(end[0]) if end else ""


def _list(one: str, several: bool) -> str:
    return f'"[" GAP? {one} {_more(one) if several else ""} GAP? "]"'


def _more(one: str) -> str:
    return f'("," GAP? {one}){{0,{MOST_CALLS - 1}}}'


def _times(one: str, several: bool) -> str:
    return f"({one}){{1,{MOST_CALLS}}}" if several else one


def _json(
    lark: Lark, format: Format, calls: JsonCalls, tools: Sequence[Tool], several: bool
) -> CallRules:
    rules = json_rules(tools, calls)
    openers = {}
    if format.section is not None:
        openers["calls"] = begin = format.section.begin
        line = with_break(lark, begin[0]).removeprefix(lark.marker(begin[0]))
        last = with_break(lark, (format.section.end or ("",))[0])
        one = _list("call", several)
        rules.append(f"calls: {line} ({one if calls.keyed else f'call | {one}'}) {last}")
    if not format.unmarked:
        return CallRules(openers, rules)
    rules += _bare_json(calls, tools, several)
    return CallRules(openers, rules, "bare", _like_json(calls, tools))


def _bare_json(calls: JsonCalls, tools: Sequence[Tool], several: bool) -> list[str]:
    """The rules of objects without a marker.

    What tells them from text is one lexeme each, since of two that fit the longer one counts.
    """
    heads, rules = [], []
    for i, tool in enumerate(tools):
        name, arguments = letters(tool.name), one_of(calls.arguments)
        heads.append(rf'\{{("type": "function", )?"{calls.names[0]}": "{name}", "{arguments}": ')
        rules.append(f'object_{i}: %json {_text(arguments_schema(tool))} "}}"')
    rules += [f"OBJECT_{i}: /{head}/" for i, head in enumerate(heads)]
    again = " | ".join(f"OBJECT_{i} object_{i}" for i in range(len(tools)))
    more = f'(";" GAP? ({again})){{0,{MOST_CALLS - 1}}}' if several else ""
    return [*rules, *_bare(heads, [f"object_{i}" for i in range(len(tools))], more)]


def _bare(heads: Sequence[str], bodies: Sequence[str], more: str) -> list[str]:
    """The rules of `bare`. `heads`: expressions of how a call of each tool begins."""
    rules = [f"BARE_{i}: /{SPACE}*{head}/" for i, head in enumerate(heads)]
    first = " | ".join(f"BARE_{i} {body}" for i, body in enumerate(bodies))
    return [*rules, f"bare: ({first}) {more}"]


def _like_json(calls: JsonCalls, tools: Sequence[Tool]) -> str:
    """An expression of texts that may be read as calls without a marker, and more."""
    key, name = (
        rf'"{SPACE}*({one_of(words)}|[^"]*\\[^"]*){SPACE}*"'
        for words in (calls.names, [tool.name for tool in tools])
    )
    return rf"{SPACE}*[{{\[]{CHAR}*{key}{SPACE}*:{SPACE}*{name}{CHAR}*"


def json_rules(tools: Sequence[Tool], calls: JsonCalls) -> list[str]:
    """The rules of `call`: an object for each tool."""
    return _each(tools, [f"%json {_text(_call_schema(tool, calls))}" for tool in tools])


def with_break(lark: Lark, text: str) -> str:
    """A marker with the line break that templates print at its inner side."""
    if not text:
        return ""
    token = lark.marker(text)
    if not (text.startswith("<") and text.endswith(">")) or "|" in text:
        return token
    return f'"\\n" {token}' if text.startswith(("</", "<|/")) else f'{token} "\\n"'


def _call_schema(tool: Tool, calls: JsonCalls) -> dict[str, Any]:
    inner = _arguments(tool)
    shared = {word: inner.pop(word) for word in SHARED if word in inner}
    fields: dict[str, Any] = {calls.names[0]: {"const": tool.name}, calls.arguments[0]: inner}
    if calls.keyed:
        fields = {tool.name: inner}
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
        "x-guidance": COMPACT,
    } | shared


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """That of a tool's arguments, which llguidance is to write compactly."""
    return {"x-guidance": COMPACT, **_arguments(tool)}


def _arguments(tool: Tool) -> dict[str, Any]:
    return {"type": "object", **parameters(tool)}


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _each(tools: Sequence[Tool], bodies: Sequence[str]) -> list[str]:
    """The rules of `call`, one of `bodies`."""
    names = [f"call_{i}" for i in range(len(tools))]
    rules = [f"{name}: {body}" for name, body in zip(names, bodies, strict=True)]
    return [f"call: {' | '.join(names)}", *rules]


def _named(
    lark: Lark, format: Format, calls: NamedCalls, tools: Sequence[Tool], several: bool
) -> CallRules:
    rules: list[str] = []
    lead = f"/{calls.lead}/" if calls.lead else ""
    lead += f" {lark.marker(calls.after)}" if calls.after else ""
    tail = f"/{calls.tail}/" if calls.tail else ""
    if lark.knows(calls.id_mark):
        tail += f" ({lark.marker(calls.id_mark)} /[A-Za-z0-9]{{1,64}}/)?"
    tail += "" if calls.name_end[0] == "{" else f" {lark.marker(calls.name_end[0])}"
    before, behind = (
        (literal(calls.skip[0] + "\n"), literal("\n" + calls.skip[1])) if calls.skip else ("", "")
    )
    bodies = []
    for i, tool in enumerate(tools):
        if calls.dialect == JSON:
            value = f"%json {_text(arguments_schema(tool))}"
        else:
            spelled = Spelled(lark, calls.dialect, f"v{i}")
            value = spelled.value(_arguments(tool), parameters(tool))
            rules += spelled.rules
        bodies.append(f"{lead} {literal(tool.name)} {tail} {before} {value} {behind}")
    rules += _each(tools, bodies)
    openers = {"calls": _section(format).begin}
    if calls.each is None:
        return CallRules(openers, [f"calls: call {_end(lark, format)}", *rules])
    begin, end = (lark.marker(marks[0]) for marks in (calls.each.begin, calls.each.end))
    one = f"GAP? {begin} rest"
    rules.append(f"rest: call {end}")
    rules.append(f"calls: {_times(one, several)} GAP? {_end(lark, format)}")
    return CallRules(openers | {"rest": calls.each.begin}, rules)


def _tagged(
    lark: Lark, format: Format, calls: TaggedCalls, tools: Sequence[Tool], several: bool
) -> CallRules:
    rules, bodies = [], []
    begun = lark.marker(calls.name_end) if calls.name_end.strip() else ""
    begun += ' (" index=\\"" /[0-9]{1,3}/ "\\"")?' if calls.numbered else ""
    begun += f" {lark.marker(calls.tag_end)}" if calls.tag_end else ""
    for i, tool in enumerate(tools):
        arguments = Arguments(lark, calls, _section(format), tool, f"v{i}")
        name = html.escape(tool.name) if calls.entities else tool.name
        inner = arguments.all()
        bodies.append(f"{literal(name)} {begun} {inner} GAP? {lark.marker(calls.close)}")
        rules += arguments.rules
    rules += _each(tools, bodies)
    openers = {"calls": format.section.begin} if format.section else {}
    one = "call"
    if calls.open:
        openers["call"] = (calls.open,)  # models leave out the section's marker
        one = f"GAP? {lark.marker(calls.open)} call"
    end = "" if calls.close in _section(format).end else f"GAP? {_end(lark, format)}"
    if format.section:
        rules.append(f"calls: {_times(one, several and format.many)} {end}")
    return CallRules(openers, rules)


def _python(lark: Lark, format: Format, tools: Sequence[Tool], several: bool) -> CallRules:
    rules = []
    for i, tool in enumerate(tools):
        spelled = Spelled(lark, PYTHON, f"v{i}")
        rules.append(f'keywords_{i}: {spelled.keywords(parameters(tool))} ")"')
        rules += spelled.rules
    bodies = [f"keywords_{i}" for i in range(len(tools))]
    named = [literal(f"{tool.name}(") for tool in tools]
    rules += _each(tools, [f"{name} {body}" for name, body in zip(named, bodies, strict=True)])
    rules.append(f"calls: GAP? {_list('call', several)} {_end(lark, format)}")
    openers = {"calls": _section(format).begin}
    if not format.unmarked:
        return CallRules(openers, rules)
    heads = [rf"\[{letters(tool.name)}\(" for tool in tools]
    more = f'{_more("call") if several else ""} "]"'
    name = one_of([tool.name for tool in tools])
    like = rf"{SPACE}*\[{SPACE}*{name}{SPACE}*\({CHAR}*"
    return CallRules(openers, [*rules, *_bare(heads, bodies, more)], "bare", like)
