"""Input items: checked and brought into the form they are stored in; and as chat messages.

Ids of items come and go with each client, so they never reach a prompt.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from radixserve.api.errors import ApiError
from radixserve.api.front import new_id
from radixserve.api.responses.tools import said_name
from radixserve.tokenizer.invalid import shown
from radixserve.tokenizer.unreadable import UnreadableParts

ROLES = ("user", "assistant", "system", "developer")
TEXT_PARTS = {  # type of a part -> the field with its text
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}

Item = dict[str, Any]
Find = Callable[[str], Item | None]  # an item by its id


def read_items(
    given: str | Sequence[Mapping[str, Any]], find: Find, unreadable: UnreadableParts
) -> list[Item]:
    """The input in its stored form; placeholders are stored, not what they stand for.

    ApiError or InvalidRequest (400) that names the field, 404 for a lost reference.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_item(item, f"input[{i}]", find, unreadable) for i, item in enumerate(given)]


def _item(item: Mapping[str, Any], where: str, find: Find, unreadable: UnreadableParts) -> Item:
    kind = item.get("type", "message" if "role" in item else None)
    match kind:
        case "message":
            return _message(item, where, unreadable)
        case "function_call":
            return _call(item, where)
        case "function_call_output":
            return _result(item, where, unreadable)
        case "reasoning":
            return _reasoning(item, where, unreadable)
        case "item_reference":
            id = _text(item, "id", where)
            found = find(id)
            if found is None:
                raise ApiError(404, f"there is no item {id[:100]}", param=f"{where}.id")
            return found
        case _:
            raise ApiError(
                400,
                f"{where}: items of the type {shown(kind)} are not supported: this model takes"
                " text only, and the server runs no tools",
                param=where,
                code="unsupported_parameter",
            )


def _message(item: Mapping[str, Any], where: str, unreadable: UnreadableParts) -> Item:
    role = item.get("role")
    if role not in ROLES:
        at = f"{where}.role"
        raise ApiError(400, f"{at} must be one of {', '.join(ROLES)}", param=at)
    kind = "output_text" if role == "assistant" else "input_text"
    more: Item = {"annotations": [], "logprobs": []} if role == "assistant" else {}
    return {
        "id": _id(item, "msg_"),
        "type": "message",
        "role": role,
        "status": "completed",
        "content": [
            {"type": kind, "text": text} | more
            for text in _texts(item.get("content"), f"{where}.content", unreadable)
        ],
    }


def _call(item: Mapping[str, Any], where: str) -> Item:
    call = {
        "id": _id(item, "fc_"),
        "type": "function_call",
        "call_id": _text(item, "call_id", where),
        "name": _text(item, "name", where),
        "arguments": _text(item, "arguments", where),
        "status": "completed",
    }
    space = item.get("namespace")
    return call if space is None else call | {"namespace": _text(item, "namespace", where)}


def _result(item: Mapping[str, Any], where: str, unreadable: UnreadableParts) -> Item:
    output = item.get("output")
    if not isinstance(output, str):
        texts = _texts(output, f"{where}.output", unreadable)
        output = [{"type": "input_text", "text": text} for text in texts]
    return {
        "id": _id(item, "fco_"),
        "type": "function_call_output",
        "call_id": _text(item, "call_id", where),
        "output": output,
        "status": "completed",
    }


def _reasoning(item: Mapping[str, Any], where: str, unreadable: UnreadableParts) -> Item:
    """Only its content is what the model thought; a summary or what is encrypted is not."""
    thoughts = _texts(item.get("content") or [], f"{where}.content", unreadable)
    summary = _texts(item.get("summary") or [], f"{where}.summary", unreadable)
    return {
        "id": _id(item, "rs_"),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text} for text in summary],
        "content": [{"type": "reasoning_text", "text": text} for text in thoughts],
    }


def _id(item: Mapping[str, Any], prefix: str) -> str:
    id = item.get("id")
    return id if isinstance(id, str) and id else new_id(prefix)


def _text(item: Mapping[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        at = f"{where}.{key}"
        raise ApiError(400, f"{at} is missing" if value is None else f"{at}: a string", param=at)
    return value


def _texts(content: object, where: str, unreadable: UnreadableParts) -> list[str]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise ApiError(400, f"{where} must be a string or a list of parts", param=where)
    return [_part(part, f"{where}[{i}]", unreadable) for i, part in enumerate(content)]


def _part(part: object, where: str, unreadable: UnreadableParts) -> str:
    if not isinstance(part, dict):
        raise ApiError(400, f"{where} must be an object", param=where)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        return unreadable.text(kind, where)
    return _text(part, TEXT_PARTS[kind], where)


def chat_messages(instructions: str | None, items: Iterable[Item]) -> list[dict[str, Any]]:
    """Items in their stored form as chat messages: one answer's items are one message again."""
    messages = _Messages()
    if instructions:
        messages.add({"role": "system", "content": instructions})
    for item in items:
        match item["type"]:
            case "message":
                messages.add_message(item["role"], _joined(item["content"]))
            case "reasoning" if item.get("content"):
                messages.turn("reasoning_content", "content", "tool_calls")["reasoning_content"] = (
                    _joined(item["content"])
                )
            case "function_call":
                messages.add_call(item)
            case "function_call_output":
                messages.add_result(item)
    return messages.all


def _joined(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)


class _Messages:
    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}  # of functions, by the id of the call

    def add(self, message: dict[str, Any]) -> None:
        self.all.append(message)

    def turn(self, *absent: str) -> dict[str, Any]:
        """The assistant's message that goes on, if it has none of `absent`; else a new one."""
        last = self.all[-1] if self.all else {"role": None}
        if last["role"] != "assistant" or any(last.get(key) for key in absent):
            self.add({"role": "assistant", "content": ""})
        return self.all[-1]

    def add_message(self, role: str, text: str) -> None:
        if role == "assistant":
            self.turn("content", "tool_calls")["content"] = text
        else:
            self.add({"role": role, "content": text})

    def add_call(self, item: Item) -> None:
        id, name = item["call_id"], said_name(item.get("namespace"), item["name"])
        self._names[id] = name
        function = {"name": name, "arguments": item["arguments"]}
        calls = self.turn().setdefault("tool_calls", [])
        calls.append({"id": id, "type": "function", "function": function})

    def add_result(self, item: Item) -> None:
        id = item["call_id"]
        message = {"role": "tool", "tool_call_id": id, "content": _joined(item["output"])}
        if id in self._names:
            message["name"] = self._names[id]
        self.add(message)
