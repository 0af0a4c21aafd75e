"""An answer's events as output items, and as the events of a stream.

Whole and streamed answers both go through here, so they say the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from radixserve.api.front import new_id
from radixserve.parsing.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    Reasoning,
)

StreamEvent = dict[str, Any]

MESSAGE, REASONING, CALL = "message", "reasoning", "function_call"
PREFIXES = {MESSAGE: "msg_", REASONING: "rs_", CALL: "fc_"}
STREAMED = {  # kind of an item -> how its text's events begin, and the field with all of it
    MESSAGE: ("response.output_text", "text"),
    REASONING: ("response.reasoning_text", "text"),
    CALL: ("response.function_call_arguments", "arguments"),
}


class _Open(Struct):
    """The item that is being written."""

    kind: str
    id: str
    index: int
    fields: dict[str, Any]  # of this one item
    text: str = ""
    logprobs: list[dict[str, Any]] = []

    @property
    def place(self) -> dict[str, Any]:
        """What its events say of it."""
        place = {"item_id": self.id, "output_index": self.index}
        return place if self.kind == CALL else place | {"content_index": 0}

    @property
    def part(self) -> dict[str, Any]:
        if self.kind == REASONING:
            return {"type": "reasoning_text", "text": self.text}
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": list(self.logprobs),
        }

    def item(self, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """`parts`: its content, if it is of a kind that has one."""
        item = {"id": self.id, "type": self.kind, "status": status}
        match self.kind:
            case "message":
                return item | {"role": "assistant", "content": parts}
            case "reasoning":
                return item | {"summary": [], "content": parts}
        return item | self.fields | {"arguments": self.text}


class Output:
    """The items so far. `add` what each piece brings, then `end` once.

    Log probabilities are those of the tokens that came with a message's text or are held back for
    it; tokens of reasoning, its marks and calls have none.
    """

    def __init__(self, names: Mapping[str, tuple[str, str]]) -> None:
        """`names`: function as the model says it -> namespace and name, for those that have one."""
        self.items: list[dict[str, Any]] = []
        self.reasoning_tokens = 0
        self._names = names
        self._open: _Open | None = None
        self._tokens = 0  # that have come since the last event
        self._logprobs: list[dict[str, Any]] = []  # theirs

    def add(
        self, events: Sequence[Event], tokens: int, logprobs: Sequence[dict[str, Any]]
    ) -> Iterator[StreamEvent]:
        """`logprobs`: of the `tokens` of this piece, or empty."""
        self._tokens += tokens
        self._logprobs += logprobs
        for event in events:
            yield from self._add(event)
        if events or (self._open and self._open.kind == REASONING):
            if self._open and self._open.kind == REASONING:
                self.reasoning_tokens += self._tokens
            self._tokens, self._logprobs = 0, []

    def end(self, status: str) -> Iterator[StreamEvent]:
        """`status` of the item that was being written."""
        if not self.items and not self._open:
            yield from self._begin(MESSAGE)
        if self._open and self._open.kind == MESSAGE and self._logprobs:
            yield from self._grow(self._open, "")
        yield from self._close(status)

    def _add(self, event: Event) -> Iterator[StreamEvent]:
        match event:
            case Content(text):
                yield from self._write(MESSAGE, text)
            case Reasoning(text):
                yield from self._write(REASONING, text)
            case CallBegin(_, name):
                space, own = self._names.get(name, ("", name))
                fields = {"call_id": new_id("call_"), "name": own}
                yield from self._begin(CALL, fields | ({"namespace": space} if space else {}))
            case CallArguments(_, text):
                assert self._open is not None and self._open.kind == CALL, "a call has begun"
                yield from self._grow(self._open, text)
            case CallEnd(_, complete):
                yield from self._close("completed" if complete else "incomplete")

    def _write(self, kind: str, text: str) -> Iterator[StreamEvent]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind)
        assert self._open is not None
        yield from self._grow(self._open, text)

    def _begin(self, kind: str, fields: dict[str, Any] | None = None) -> Iterator[StreamEvent]:
        yield from self._close("completed")
        new = self._open = _Open(kind, new_id(PREFIXES[kind]), len(self.items), fields or {})
        yield {
            "type": "response.output_item.added",
            "output_index": new.index,
            "item": new.item("in_progress", []),
        }
        if kind != CALL:
            yield {"type": "response.content_part.added", **new.place, "part": new.part}

    def _grow(self, item: _Open, text: str) -> Iterator[StreamEvent]:
        item.text += text
        more: StreamEvent = {}
        if item.kind == MESSAGE:
            more["logprobs"], self._logprobs = self._logprobs, []
            item.logprobs += more["logprobs"]
        name, _ = STREAMED[item.kind]
        yield {"type": f"{name}.delta", **item.place, "delta": text, **more}

    def _close(self, status: str) -> Iterator[StreamEvent]:
        item, self._open = self._open, None
        if item is None:
            return
        name, field = STREAMED[item.kind]
        done: StreamEvent = {"type": f"{name}.done", **item.place, field: item.text}
        if item.kind == MESSAGE:
            done["logprobs"] = list(item.logprobs)
        if item.kind == CALL:
            done["name"] = item.fields["name"]
        yield done
        if item.kind != CALL:
            yield {"type": "response.content_part.done", **item.place, "part": item.part}
        whole = item.item(status, [item.part])
        self.items.append(whole)
        yield {"type": "response.output_item.done", "output_index": item.index, "item": whole}
