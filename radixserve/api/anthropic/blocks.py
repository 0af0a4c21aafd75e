"""Answers as Anthropic's events: blocks of text, thinking and tool calls, one open at a time.

Whole messages are folded from the same events, so a stream says exactly the same.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from msgspec import Raw

from radixserve.api.front import new_id
from radixserve.parsing.events import CallArguments, CallBegin, CallEnd, Content, Event, Reasoning

Data: TypeAlias = dict[str, Any]  # an event's data; its `type` is the event's name

FRESH: dict[str, Data] = {
    "text": {"type": "text", "text": "", "citations": None},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


def _tool_use(name: str) -> Data:
    return {
        "type": "tool_use",
        "id": new_id("toolu_"),
        "caller": {"type": "direct"},
        "name": name,
        "input": {},
    }


class Blocks:
    """What a parser found, as events of blocks. `close` at the end."""

    def __init__(self) -> None:
        self._index = -1
        self._open = ""  # the type of the open block

    def add(self, events: Sequence[Event]) -> Iterator[Data]:
        for found in events:
            match found:
                case Content(text):
                    yield from self._within("text")
                    yield self._delta("text_delta", text=text)
                case Reasoning(text):
                    yield from self._within("thinking")
                    yield self._delta("thinking_delta", thinking=text)
                case CallBegin(_, name):
                    yield from self.close()
                    yield self._begin(_tool_use(name))
                case CallArguments(_, text):
                    yield self._delta("input_json_delta", partial_json=text)
                case CallEnd():
                    yield from self.close()

    def close(self) -> Iterator[Data]:
        """End the block that is open, if one is."""
        if self._open == "thinking":
            yield self._delta("signature_delta", signature="")
        if self._open:
            yield {"type": "content_block_stop", "index": self._index}
        self._open = ""

    def _within(self, kind: str) -> Iterator[Data]:
        if self._open != kind:
            yield from self.close()
            yield self._begin(dict(FRESH[kind]))

    def _begin(self, block: Data) -> Data:
        self._index += 1
        self._open = block["type"]
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, kind: str, **more: str) -> Data:
        delta = {"type": kind} | more
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


class Fold:
    """The whole message that a stream's events say."""

    def __init__(self) -> None:
        self.message: Data = {}
        self._input = ""  # of the open tool call; goes out as the model wrote it

    def add(self, data: Data) -> None:
        match data["type"]:
            case "message_start":
                self.message = data["message"]
            case "content_block_start":
                self.message["content"].append(data["content_block"])
                self._input = ""
            case "content_block_delta":
                self._extend(data["delta"])
            case "content_block_stop":
                block = self.message["content"][-1]
                if block["type"] == "tool_use" and self._input:
                    block["input"] = Raw(self._input.encode())
            case "message_delta":
                self.message |= data["delta"]
                self.message["usage"] |= data["usage"]

    def _extend(self, delta: Data) -> None:
        for name, text in delta.items():
            if name == "partial_json":
                self._input += text
            elif name != "type":
                self.message["content"][-1][name] += text
