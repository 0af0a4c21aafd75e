"""Calls written as a list of Python calls: `[f(a=1, b="x"), g()]`."""

import json
import re
from collections.abc import Collection

from radixserve.parsing.output import Output
from radixserve.parsing.reader import Malformed, Reader, Wait
from radixserve.parsing.values import PYTHON, ValueMachine

_MAX_NAME = 256
_NAME = re.compile(r"\s*([^\W\d][\w.-]*)\s*")


class PythonCallMachine:
    """Reads a list of calls from `reader` into `output`; they are shown all or none.

    `known`: unless None, the only names that make it a list of calls.
    """

    def __init__(
        self, reader: Reader, output: Output, known: Collection[str] | None = None
    ) -> None:
        self._reader = reader
        self._output = output
        self._known = known

    def run(self) -> Wait[None]:
        """Raises Malformed, Ended."""
        reader = self._reader
        yield from reader.space()
        if not (yield from reader.accept(("[",))):
            raise Malformed
        self._output.begin_group()
        while True:
            yield from self._call()
            yield from reader.space()
            if (yield from reader.accept((",", "]"))) == "]":
                break
        self._output.end_group()

    def _call(self) -> Wait[None]:
        reader = self._reader
        name = yield from self._word("(")
        if self._known is not None and name not in self._known:
            raise Malformed
        self._output.begin(name)
        before = "{"
        while not (yield from self._closed()):
            key = yield from self._word("=")
            before += json.dumps(key, ensure_ascii=False) + ": "
            yield from ValueMachine(reader, PYTHON, self._output.arguments, before).run()
            before = ", "
        self._output.arguments("{}" if before == "{" else "}")
        self._output.end()

    def _word(self, end: str) -> Wait[str]:
        """The name before `end`, both taken."""
        text, _ = yield from self._reader.short((end,), _MAX_NAME)
        found = _NAME.fullmatch(text)
        if not found:
            raise Malformed
        return found.group(1)

    def _closed(self) -> Wait[bool]:
        """Takes the comma before another argument, or the bracket behind the last."""
        yield from self._reader.space()
        if (yield from self._reader.accept((",", ")"))) == ")":
            return True
        yield from self._reader.space()
        return bool((yield from self._reader.accept((")",))))
