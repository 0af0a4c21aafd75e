"""OpenAI chat messages as chat templates expect them, checked on the way.

Contents become text, tool-call arguments objects, `developer` `system`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from radixserve.tokenizer.invalid import InvalidRequest
from radixserve.tokenizer.unreadable import UnreadableParts

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = {"text": "text", "refusal": "refusal"}  # part type -> the field with its text
KEPT_TEXTS = ("name", "tool_call_id", "reasoning_content")


def conversation(
    messages: Sequence[Mapping[str, Any]], *, knows_developer: bool, unreadable: UnreadableParts
) -> list[dict[str, Any]]:
    """The messages for a template. InvalidRequest names the field at fault."""
    if not messages:
        raise InvalidRequest("messages must have at least one message", "messages")
    return [
        _message(message, f"messages[{i}]", knows_developer, unreadable)
        for i, message in enumerate(messages)
    ]


def _message(
    message: Mapping[str, Any], where: str, knows_developer: bool, unreadable: UnreadableParts
) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role must be one of {', '.join(ROLES)}", f"{where}.role")
    if message.get("function_call") is not None:
        raise InvalidRequest(
            f"{where}.function_call is not supported: use tool_calls", f"{where}.function_call"
        )
    out: dict[str, Any] = {
        "role": "system" if role == "developer" and not knows_developer else role,
        "content": _content(message, f"{where}.content", unreadable),
    }
    reasoning = message.get("reasoning_content", message.get("reasoning"))
    for name, value in ({**message, "reasoning_content": reasoning}).items():
        if name in KEPT_TEXTS and value is not None:
            out[name] = _text(value, f"{where}.{name}")
    if calls := message.get("tool_calls"):
        out["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls")
    return out


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{where} must be a string", where)
    return value


def _content(message: Mapping[str, Any], where: str, unreadable: UnreadableParts) -> str:
    content = message.get("content")
    if content is None:
        if message["role"] != "assistant":
            raise InvalidRequest(f"{where} is missing", where)
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must be a string or a list of parts", where)
    return "\n".join(_part(part, f"{where}[{i}]", unreadable) for i, part in enumerate(content))


def _part(part: object, where: str, unreadable: UnreadableParts) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{where} must be an object", where)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        return unreadable.text(kind, where)
    field = TEXT_PARTS[kind]
    return _text(part.get(field), f"{where}.{field}")


def _tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where} must be a list", where)
    return [_tool_call(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise InvalidRequest(f"{where} must have a function", where)
    _text(function.get("name"), f"{where}.function.name")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: object) -> object:
    """Arguments as an object, the form templates print; text that is not one stays as it is."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            parsed = msgspec.json.decode(arguments)
        except (ValueError, RecursionError):
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    return arguments
