"""Writes answers as models of a format do: what the parser is to read back."""

import html
import json
from typing import Any

from msgspec import Struct

from radixserve.parsing.format import Format, JsonCalls, NamedCalls, PythonCalls, TaggedCalls
from radixserve.parsing.tools import Tool
from radixserve.parsing.values import GEMMA

_JSON_TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    dict: "object",
    list: "array",
    type(None): "null",
}


class Answer(Struct, frozen=True):
    reasoning: str = ""
    content: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


def tools_of(answer: Answer) -> list[Tool]:
    """Tools whose schemas say what types the arguments of `answer` have."""
    tools: dict[str, dict[str, Any]] = {}
    for name, arguments in answer.calls:
        properties = tools.setdefault(name, {})
        for key, value in arguments.items():
            kinds = set(properties.get(key, {"type": []})["type"])
            properties[key] = {"type": sorted(kinds | {_JSON_TYPES[type(value)]})}
    return [Tool(n, {"type": "object", "properties": p}) for n, p in tools.items()]


def write(format: Format, answer: Answer) -> str:
    if format.harmony:
        return _harmony(answer)
    text = ""
    if answer.reasoning and format.thoughts:
        thoughts = format.thoughts
        text += thoughts.begin[0] + answer.reasoning + thoughts.end[0]
    text += answer.content
    return text + _section(format, answer) if answer.calls else text


def _section(format: Format, answer: Answer) -> str:
    section, calls = format.section, format.calls
    begin = section.begin[0] if section and not format.unmarked else ""
    end = section.end[0] if section and section.end and not format.unmarked else ""
    if isinstance(calls, PythonCalls):
        return begin + "[" + ", ".join(_python(*call) for call in answer.calls) + "]" + end
    written = [_call(format, *call) for call in answer.calls]
    if isinstance(calls, JsonCalls) and calls.keyed:
        return begin + "[" + ", ".join(written) + "]" + end
    if format.unmarked:
        return "; ".join(written)
    return (
        begin + "\n".join(written) + end
        if format.many
        else begin + (end + begin).join(written) + end
    )


def _call(format: Format, name: str, arguments: dict[str, Any]) -> str:
    calls = format.calls
    if isinstance(calls, JsonCalls):
        whole = {name: arguments} if calls.keyed else {"name": name, "arguments": arguments}
        return json.dumps(whole, ensure_ascii=False)
    if isinstance(calls, NamedCalls):
        return _named(format, calls, name, arguments)
    assert isinstance(calls, TaggedCalls)
    return _tagged(calls, name, arguments)


def _named(format: Format, calls: NamedCalls, name: str, arguments: dict[str, Any]) -> str:
    gemma = calls.dialect == GEMMA
    value = _gemma(arguments) if gemma else json.dumps(arguments, ensure_ascii=False)
    name = f"functions.{name}:0" if format.name == "kimi_k2" else name
    name = f"call:{name}" if gemma else name
    end = "" if calls.name_end[0] == "{" else calls.name_end[0]
    fences = (calls.skip[0] + "\n", "\n" + calls.skip[1]) if calls.skip else ("", "")
    text = ("function" + calls.after if calls.after else "") + name + end
    text += fences[0] + value + fences[1]
    return calls.each.begin[0] + text + calls.each.end[0] if calls.each else text


def _tagged(calls: TaggedCalls, name: str, arguments: dict[str, Any]) -> str:
    line = "\n" if calls.lines else ""
    text = calls.open + name + calls.name_end + calls.tag_end
    for key, value in arguments.items():
        key = html.escape(key) if calls.entities else key
        raw = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        text += line + calls.key_open + key + calls.key_end
        if calls.typed_by == "string":
            text += f' string="{"true" if isinstance(value, str) else "false"}"'
        elif calls.typed_by:
            text += f' type="{_JSON_TYPES[type(value)].replace("integer", "number")}"'
        text += calls.key_tag_end
        text += line + raw + line + calls.value_end
    return text + line + ("" if calls.close == "</tool_call>" else calls.close)


def _python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _gemma(value: Any) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            return "{" + ",".join(f"{key}:{_gemma(part)}" for key, part in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_gemma, value)) + "]"
    return json.dumps(value)


def _harmony(answer: Answer) -> str:
    messages = []
    if answer.reasoning:
        messages.append(f"<|channel|>analysis<|message|>{answer.reasoning}")
    if answer.content:
        messages.append(f"<|channel|>final<|message|>{answer.content}")
    for name, arguments in answer.calls:
        value = json.dumps(arguments, ensure_ascii=False)
        header = f"<|channel|>commentary to=functions.{name} <|constrain|>json"
        messages.append(f"{header}<|message|>{value}")
    return "<|end|><|start|>assistant".join(messages)
