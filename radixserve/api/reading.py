"""What the text of a chat answer means: content, reasoning, tool calls; and what forces calls.

One `Reader` per choice, for streams and for whole answers alike, so both say the same.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from radixserve.api.errors import ApiError
from radixserve.api.front import Front, new_id
from radixserve.api.grammar import judged
from radixserve.parsing.events import CallArguments, CallBegin, Content, Event, Reasoning
from radixserve.parsing.format import Format, format_of
from radixserve.parsing.grammars.forced import forced_calls
from radixserve.parsing.parser import Parser
from radixserve.parsing.tools import Tool
from radixserve.tokenizer.answer import Piece

AUTO, NONE, REQUIRED = "auto", "none", "required"


class Choice(Struct, frozen=True):
    """What a request says about tools. `forced`: the answer is calls of `tools` and nothing else.

    `named`: of the one tool that the request names. `several`: more than one call may come.
    """

    tools: tuple[Tool, ...] = ()
    forced: bool = False
    named: bool = False
    several: bool = True


def read_choice(
    tools: Sequence[Mapping[str, Any]] | None,
    choice: str | Mapping[str, Any] | None,
    several: bool,
    strict: Collection[str] = (),
) -> Choice:
    """`tools` have been checked; those that `strict` names are strict, too.

    Raises ApiError 400 for a `tool_choice` that makes no sense.
    """
    functions = [tool["function"] for tool in tools or ()]
    offered = tuple(
        Tool(f["name"], _schema(f, i), f.get("strict") is True or f["name"] in strict)
        for i, f in enumerate(functions)
    )
    if choice in (None, AUTO):
        return Choice(offered, several=several)
    if choice == NONE:
        return Choice()
    if choice == REQUIRED:
        if not offered:
            raise ApiError(400, 'tool_choice: "required" needs tools', param="tool_choice")
        return Choice(offered, forced=True, several=several)
    name = _named(choice)
    found = tuple(tool for tool in offered if tool.name == name)
    if not found:
        raise ApiError(400, f"tool_choice: no tool is named {name[:100]}", param="tool_choice")
    return Choice(found[:1], forced=True, named=True, several=False)


def _schema(function: Mapping[str, Any], index: int) -> Mapping[str, Any] | None:
    schema = function.get("parameters")
    if schema is not None and not isinstance(schema, Mapping):
        where = f"tools[{index}].function.parameters"
        raise ApiError(400, f"{where}: a JSON schema is an object", param=where)
    return schema


def _named(choice: str | Mapping[str, Any] | None) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not isinstance(choice, Mapping):
        raise ApiError(
            400,
            'tool_choice must be "none", "auto", "required" or name a function',
            param="tool_choice",
        )
    return name


class Reading(Struct, frozen=True):
    """How the answers of one request are read. `grammar`: what forces them, "" if nothing does."""

    choice: Choice
    format: Format | None
    grammar: str = ""

    def reader(self, prompt: str, listen: "Listener | None" = None) -> "Reader":
        """For one choice that continues `prompt`, of which the end is enough."""
        if self.format is None:
            return Reader(None, listen)
        parser = Parser(self.format, self.choice.tools, prompt=prompt, hold_calls=False)
        return Reader(parser, listen)


def make_reading(front: Front, choice: Choice) -> Reading:
    """Judges the grammar of forced calls: call it in a thread. Raises ApiError 400."""
    format = front.format
    if choice.forced:
        forced = forced_calls(
            format, choice.tools, several=choice.several, special_tokens=front.grammar_tokens
        )
        return Reading(choice, forced.format, judged(forced.grammar, "tools", front.judge.fault))
    return Reading(choice, format_of(format, bool(choice.tools)))


class Listener(Protocol):
    """Hears an answer with its client."""

    def heard(self, piece: Piece, events: Sequence[Event]) -> None: ...


class Reader:
    """Events of one answer."""

    def __init__(self, parser: Parser | None, listen: Listener | None = None) -> None:
        self._parser = parser
        self._listen = listen
        self.called = False  # whether a tool call has begun

    def read(self, piece: Piece) -> list[Event]:
        """What the piece adds; with a `finish` also what was held back."""
        events = self._events(piece)
        self.called = self.called or any(isinstance(event, CallBegin) for event in events)
        if self._listen is not None:
            self._listen.heard(piece, events)
        return events

    def _events(self, piece: Piece) -> list[Event]:
        if self._parser is None:
            return [Content(piece.text)] if piece.text else []
        events = self._parser.feed(piece.text)
        if piece.finish:
            events += self._parser.finish(cut=piece.finish != "stop")
        return events


def delta_of(event: Event) -> dict[str, Any] | None:
    """An event as the `delta` of a chunk; None for one that says nothing there."""
    match event:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallBegin(index, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": new_id("call"), "type": "function", "function": function}
            return {"tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case _:
            return None


class Message:
    """A whole answer, put together from its events."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.calls: list[dict[str, Any]] = []

    def add(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Content(text):
                    self.content += text
                case Reasoning(text):
                    self.reasoning += text
                case CallBegin(_, name):
                    function = {"name": name, "arguments": ""}
                    call = {"id": new_id("call"), "type": "function", "function": function}
                    self.calls.append(call)
                case CallArguments(index, text):
                    self.calls[index]["function"]["arguments"] += text

    def as_json(self) -> dict[str, Any]:
        """The `message` of a chat choice."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": self.content if self.content or not self.calls else None,
            "refusal": None,
            "annotations": [],
        }
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return message
