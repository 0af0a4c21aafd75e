"""Calls written as JSON objects: `{"name": ..., "arguments": {...}}`, alone or in an array."""

import json
from collections.abc import Collection

from radixserve.parsing.format import JsonCalls
from radixserve.parsing.output import Output
from radixserve.parsing.reader import Malformed, Reader, Sink, Wait
from radixserve.parsing.values import JSON, ValueMachine, to_json

_OTHER_KEYS = frozenset(("type", "id", "tool_call_id"))


class JsonCallMachine:
    """Reads calls from `reader` into `output`.

    `known`: unless None, the only names that make an object a call, and then it must have
    arguments and no keys but those of calls.
    """

    def __init__(
        self, reader: Reader, output: Output, calls: JsonCalls, known: Collection[str] | None = None
    ) -> None:
        self._reader = reader
        self._output = output
        self._calls = calls
        self._known = known

    def run(self) -> Wait[None]:
        """One object or one array. Raises Malformed, Ended."""
        yield from self._reader.space()
        if not (yield from self._reader.accept(("[",))):
            return (yield from self._object())
        while True:
            yield from self._reader.space()
            if (yield from self._reader.accept(("]", ","))) == "]":
                return None
            yield from self._reader.space()
            yield from self._object()

    def _object(self) -> Wait[None]:
        yield from self._take("{")
        call = _Call(self._output, self._known)
        while (yield from self._more()):
            key = json.loads((yield from self._value()))
            if not isinstance(key, str):
                raise Malformed
            yield from self._take(":")
            yield from self._member(call, key)
        call.end()
        self._reader.record()  # if a later one fails, this one's text is used

    def _member(self, call: "_Call", key: str) -> Wait[None]:
        if self._calls.keyed:
            call.named(key)
            yield from self._arguments(call)
        elif key in self._calls.names:
            call.named(json.loads((yield from self._value())))
        elif key in self._calls.arguments and not call.has_arguments:
            yield from self._arguments(call)
        elif self._known is not None and key not in _OTHER_KEYS:
            raise Malformed
        else:
            yield from self._value()

    def _arguments(self, call: "_Call") -> Wait[None]:
        """An object; also as a string that holds one, or null for an empty one."""
        yield from self._reader.space()
        if (yield from self._reader.looking_at(("{",))):
            yield from ValueMachine(self._reader, JSON, call.arguments()).run()
            return
        value = json.loads((yield from self._value()))
        text = to_json(value.strip() or "{}") if isinstance(value, str) else None
        if value is None:
            text = "{}"
        if text is None or text[0] != "{":
            raise Malformed
        call.arguments()(text)

    def _value(self) -> Wait[str]:
        pieces: list[str] = []
        yield from ValueMachine(self._reader, JSON, pieces.append).run()
        return "".join(pieces)

    def _more(self) -> Wait[bool]:
        """Whether another member comes; takes the comma before it or the closing bracket."""
        yield from self._reader.space()
        if (yield from self._reader.accept(("}", ","))) == "}":
            return False
        yield from self._reader.space()
        return not (yield from self._reader.accept(("}",)))

    def _take(self, wanted: str) -> Wait[None]:
        yield from self._reader.space()
        if not (yield from self._reader.accept((wanted,))):
            raise Malformed


class _Call:
    """One call while its object is read: arguments wait until the name has come."""

    def __init__(self, output: Output, known: Collection[str] | None) -> None:
        self._output = output
        self._known = known
        self._early: list[str] = []
        self._begun = False
        self._name = ""
        self.has_arguments = False

    def named(self, name: object) -> None:
        if self._name:
            raise Malformed
        if not isinstance(name, str) or not name.strip():
            raise Malformed
        self._name = name.strip()
        if self._known is not None and self._name not in self._known:
            raise Malformed

    def arguments(self) -> Sink:
        """Where they go."""
        self.has_arguments = True
        if not self._name:
            return self._early.append
        self._output.begin(self._name)
        self._begun = True
        return self._output.arguments

    def end(self) -> None:
        if not self._name or (self._known is not None and not self.has_arguments):
            raise Malformed
        if not self._begun:
            self._output.begin(self._name)
            self._output.arguments("".join(self._early) or "{}")
        self._output.end()
