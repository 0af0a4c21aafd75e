"""Calls written as a name and then one value: `name[ARGS]{...}`, `call:name{...}`."""

import re

from radixserve.parsing.format import JsonCalls, NamedCalls
from radixserve.parsing.json_calls import JsonCallMachine
from radixserve.parsing.output import Output
from radixserve.parsing.reader import Malformed, Reader, Wait
from radixserve.parsing.values import ValueMachine

MAX_NAME = 256  # characters of a name, with what stands around it


class NamedCallMachine:
    """Reads one call, without the markers around it, from `reader` into `output`."""

    def __init__(self, reader: Reader, output: Output, calls: NamedCalls) -> None:
        self._reader = reader
        self._output = output
        self._calls = calls

    def run(self) -> Wait[None]:
        """Raises Malformed, Ended."""
        reader, calls = self._reader, self._calls
        if calls.or_json:
            yield from reader.space()
            if (yield from reader.looking_at(("[", "{"))):
                return (yield from JsonCallMachine(reader, self._output, JsonCalls()).run())
        name = yield from self._name()
        yield from self._skip()
        if not (yield from reader.looking_at(("{",))):
            raise Malformed
        self._output.begin(name)
        yield from ValueMachine(reader, calls.dialect, self._output.arguments).run()
        yield from self._skip()
        self._output.end()
        return None

    def _name(self) -> Wait[str]:
        reader, calls = self._reader, self._calls
        if calls.after:
            yield from reader.short((calls.after,), MAX_NAME)
        text, mark = yield from reader.short(calls.name_end, MAX_NAME)
        found = re.fullmatch(calls.pattern, text)
        if not found:
            raise Malformed
        if mark == calls.id_mark:
            _, mark = yield from reader.short(calls.name_end, MAX_NAME)
        if mark == "{":
            reader.give_back(mark)
        return str(found.group(1))

    def _skip(self) -> Wait[None]:
        yield from self._reader.space()
        if self._calls.skip and (yield from self._reader.accept(self._calls.skip)):
            yield from self._reader.space()
