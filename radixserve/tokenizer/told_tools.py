"""Tools for chat templates that know none: told in words, called and answered between tags.

In the form that Hermes models are trained on (NousResearch, Hermes Function Calling), which others
follow when told to: so any model that can follow a prompt, or a grammar, can use tools.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

Message = Mapping[str, Any]

FORMAT = "hermes"  # how calls are read
BEFORE = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
BEHIND = """
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


def told_tools(
    messages: Sequence[Message], tools: Sequence[Message] | None, *, takes_system: bool
) -> list[Message]:
    """The same conversation for a template that knows contents only.

    Tools stand at the end of the system's message, or where the template has no place for one
    (`takes_system`) before the first message.
    """
    out: list[Message] = []
    for are_results, group in groupby(messages, lambda message: message["role"] == "tool"):
        if are_results:
            out.append({"role": "user", "content": "\n".join(map(_result, group))})
        else:
            out += (_in_words(message) for message in group)
    return _with_block(out, _block(tools), takes_system) if tools else out


def _with_block(messages: list[Message], block: str, takes_system: bool) -> list[Message]:
    role = "system" if takes_system else "user"
    first = messages[0] if messages else {}
    if first.get("role") != role:
        return [{"role": role, "content": block}, *messages]
    texts = [first["content"], block] if takes_system else [block, first["content"]]
    return [{**first, "content": "\n\n".join(filter(None, texts))}, *messages[1:]]


def _block(tools: Sequence[Message]) -> str:
    return BEFORE + "\n".join(_json(tool) for tool in tools) + BEHIND


def _in_words(message: Message) -> Message:
    """The content, then each call as a model writes it."""
    if not message.get("tool_calls"):
        return message
    calls = [
        f"<tool_call>\n{_json({key: call['function'][key] for key in ('name', 'arguments')})}\n"
        "</tool_call>"
        for call in message["tool_calls"]
    ]
    text = "\n".join(filter(None, [message["content"], *calls]))
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": text}


def _result(message: Message) -> str:
    return f"<tool_response>\n{message['content']}\n</tool_response>"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
