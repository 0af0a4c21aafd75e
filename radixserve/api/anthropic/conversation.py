"""Anthropic's turns, system prompt and tools as the messages and tools that templates know.

Turns of blocks become one message or more: the results of tools are messages of their own.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from radixserve.api.anthropic.fields import PromptFields, ToolChoice, Turn
from radixserve.api.body import named_fault
from radixserve.api.errors import ApiError
from radixserve.api.prompts import Conversation
from radixserve.tokenizer.invalid import InvalidRequest, shown
from radixserve.tokenizer.templates import ChatTemplate
from radixserve.tokenizer.unreadable import UnreadableParts

# The first line of a block of Claude Code's system prompt: it differs by session and by request.
NONCE = "x-anthropic-billing-header:"
PROBE = "late-system-probe"

Message: TypeAlias = dict[str, Any]


class Text(Struct, frozen=True, tag="text"):
    text: str


class Thoughts(Struct, frozen=True, tag="thinking"):
    thinking: str = ""


class HiddenThoughts(Struct, frozen=True, tag="redacted_thinking"):
    """Nobody but who wrote it can read it."""


class ToolUse(Struct, frozen=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ToolResult(Struct, frozen=True, tag="tool_result"):
    """Whether it is an error only its text can tell: templates have no place for more."""

    tool_use_id: str
    content: str | list[dict[str, Any]] | None = None


Block: TypeAlias = Text | Thoughts | HiddenThoughts | ToolUse | ToolResult
TEXTS = ("text",)
OF_USER = ("text", "tool_result")
OF_ASSISTANT = ("text", "thinking", "redacted_thinking", "tool_use")


def takes_late_system(template: ChatTemplate) -> bool:
    """Whether it prints a system message that comes after others. Many refuse it."""
    roles = ("user", "assistant", "system", "user")
    turns = [{"role": r, "content": PROBE if r == "system" else "x"} for r in roles]
    try:
        return PROBE in template.render(turns)
    except InvalidRequest:
        return False


def read_conversation(
    fields: PromptFields,
    tools: Sequence[Message],
    unreadable: UnreadableParts,
    *,
    late_system: bool,
    keep_nonces: bool,
) -> Conversation:
    """The conversation of a request that was checked. Raises ApiError 400.

    An assistant's turn at the end goes on. `late_system`: see `takes_late_system`; where it is
    false, such a message becomes a user's. `keep_nonces`: see NONCE.
    """
    system = _texts(fields.system or [], "system", unreadable)
    if not keep_nonces:
        system = [kept for text in system if (kept := _without_nonce(text))]
    turns = fields.messages or []
    messages: list[Message] = []
    for i, turn in enumerate(turns):
        where = f"messages[{i}].content"
        if turn.role == "assistant":
            messages.append(_assistant(turn, where, unreadable))
        elif turn.role == "user":
            for message in _user(turn, where, unreadable):
                _append(messages, message)
        elif messages:
            role = "system" if late_system else "user"
            _append(messages, _said(role, _texts(turn.content, where, unreadable)))
        else:
            system += _texts(turn.content, where, unreadable)
    prefill = turns[-1].role == "assistant"
    if prefill and messages[-1].get("tool_calls"):
        where = f"messages[{len(turns) - 1}]"
        raise ApiError(400, f"{where}: a tool_use needs a tool_result behind it", param=where)
    none = fields.tool_choice is not None and fields.tool_choice.type == "none"
    return Conversation(
        messages=[_said("system", system), *messages] if system else messages,
        tools=None if none or not tools else tools,
        variables=fields.variables,
        header=not prefill,
        prefill=prefill,
    )


def _without_nonce(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(NONCE) else text


def _append(messages: list[Message], message: Message) -> None:
    """Turns of a user that follow each other are one, as Anthropic defines it."""
    if messages and message["role"] == "user" == messages[-1]["role"]:
        messages[-1]["content"] += message["content"]
    else:
        messages.append(message)


def _said(role: str, texts: Sequence[str]) -> Message:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


def _user(turn: Turn, where: str, unreadable: UnreadableParts) -> Iterator[Message]:
    """In the order of the blocks."""
    texts: list[str] = []
    found = False
    for place, block in _blocks(turn.content, where, OF_USER, unreadable):
        match block:
            case Text(text):
                texts.append(text)
            case ToolResult(use, content):
                found = True
                if texts:
                    yield _said("user", texts)
                    texts = []
                texts_of = _texts(content or [], f"{place}.content", unreadable)
                yield _said("tool", texts_of) | {"tool_call_id": use}
    if texts or not found:
        yield _said("user", texts)


def _assistant(turn: Turn, where: str, unreadable: UnreadableParts) -> Message:
    content, thoughts, calls = "", "", []
    for _, block in _blocks(turn.content, where, OF_ASSISTANT, unreadable):
        match block:
            case Text(text):
                content += text
            case Thoughts(text):
                thoughts += text
            case ToolUse(id, name, input):
                function = {"name": name, "arguments": input}
                calls.append({"id": id, "type": "function", "function": function})
    message: Message = {"role": "assistant", "content": content}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return message


def _texts(
    content: str | list[dict[str, Any]], where: str, unreadable: UnreadableParts
) -> list[str]:
    blocks = _blocks(content, where, TEXTS, unreadable)
    return [block.text for _, block in blocks if isinstance(block, Text)]


def _blocks(
    content: str | list[dict[str, Any]],
    where: str,
    allowed: Collection[str],
    unreadable: UnreadableParts,
) -> Iterator[tuple[str, Block]]:
    """Each block with its place. Raises ApiError 400 for types that are not `allowed` there."""
    if isinstance(content, str):
        yield where, Text(content)
        return
    for i, block in enumerate(content):
        place = f"{where}[{i}]"
        kind = block.get("type")
        if (text := unreadable.placeholder(kind)) is not None:
            yield place, Text(text)
            continue
        if kind not in allowed:
            text = f"{place} is of type {shown(kind)}: here this model takes only "
            raise ApiError(400, text + ", ".join(allowed), param=place)
        try:
            yield place, msgspec.convert(block, Block)
        except msgspec.ValidationError as error:
            raise named_fault(error, place) from error


def read_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[list[Message], list[str]]:
    """The tools as functions, and the types of those that only Anthropic's servers can run.

    Raises ApiError 400.
    """
    functions, foreign = [], []
    for i, tool in enumerate(tools):
        if _is_own(tool):
            functions.append({"type": "function", "function": _function(tool, f"tools[{i}]")})
        else:
            foreign.append(shown(tool["type"]))
    return functions, foreign


def strict_tools(tools: Sequence[Mapping[str, Any]]) -> set[str]:
    """The names of those of `read_tools` whose calls must fit their schemas."""
    return {tool["name"] for tool in tools if _is_own(tool) and tool.get("strict") is True}


def _is_own(tool: Mapping[str, Any]) -> bool:
    """Whether a client runs it."""
    return tool.get("type") in (None, "custom")


def _function(tool: Mapping[str, Any], where: str) -> Message:
    for name, kind in (("name", str), ("input_schema", dict)):
        if not isinstance(tool.get(name), kind):
            text = f"{where}.{name} must be {'a string' if kind is str else 'an object'}"
            raise ApiError(400, text, param=f"{where}.{name}")
    function = {"name": tool["name"]}
    description = tool.get("description")
    if description is not None:
        if not isinstance(description, str):
            text = f"{where}.description must be a string"
            raise ApiError(400, text, param=f"{where}.description")
        function["description"] = description
    return function | {"parameters": tool["input_schema"]}


def openai_choice(choice: ToolChoice | None, tools: Sequence[Message]) -> str | Message | None:
    """The choice of tools in OpenAI's terms. Raises ApiError 400."""
    if choice is None:
        return None
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type == "any" and not tools:
        text = "tool_choice: any needs tools that a client can run"
        raise ApiError(400, text, param="tool_choice")
    return "required" if choice.type == "any" else choice.type
