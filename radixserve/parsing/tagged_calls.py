"""Calls with tags around raw arguments: `<function=f><parameter=k>v</parameter></function>`.

Values are not escaped, so a value's end marker counts only where another argument or the end of the
call follows it. Strings are streamed; a value of another kind waits for its end.
"""

import html
import json
import re

from radixserve.parsing.format import Pair, TaggedCalls
from radixserve.parsing.output import Output
from radixserve.parsing.reader import Closer, Malformed, Reader, Sink, Wait
from radixserve.parsing.tools import Tool, typed
from radixserve.parsing.values import escaped, to_json

MAX_TAG = 256
CDATA = "<![CDATA["
_STRING = frozenset(("string",))
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_NAME = re.compile(r"\s*([^\s<>\"]+)\s*")


class TaggedCallMachine:
    """Reads one call, behind its opening marker, from `reader` into `output`.

    `section`: what stands around the calls; models forget the markers before its end.
    """

    def __init__(
        self,
        reader: Reader,
        output: Output,
        calls: TaggedCalls,
        tools: dict[str, Tool],
        section: Pair,
    ) -> None:
        self._reader = reader
        self._output = output
        self._calls = calls
        self._tools = tools
        self._section = section

    def run(self) -> Wait[None]:
        """Raises Malformed, Ended."""
        reader, calls = self._reader, self._calls
        name, attributes = yield from self._opened()
        tool = self._tools.get(name) or Tool(name)
        self._output.begin(name)
        before = "{"
        if not attributes.endswith("/"):
            while (yield from self._another()):
                key, attributes = yield from self._key()
                before += json.dumps(key, ensure_ascii=False) + ": "
                yield from self._argument(tool, key, attributes, before)
                before = ", "
        self._output.arguments("{}" if before == "{" else "}")
        self._output.end()
        if calls.close in self._section.end:
            reader.give_back(calls.close)

    def _opened(self) -> Wait[tuple[str, str]]:
        """The name, and the attributes behind it."""
        reader, calls = self._reader, self._calls
        ends = (calls.name_end,) if calls.open else (calls.name_end, calls.key_open, calls.close)
        text, mark = yield from reader.short(ends, MAX_TAG)
        if not text.strip() and mark == calls.name_end and not calls.open:  # a line break first
            text, mark = yield from reader.short(ends, MAX_TAG)
        found = _NAME.fullmatch(text)
        if not found:
            raise Malformed
        if mark != calls.name_end:
            reader.give_back(mark)
        attributes = ""
        if calls.tag_end:
            attributes, _ = yield from reader.short((calls.tag_end,), MAX_TAG)
        return self._text(found.group(1)), attributes

    def _text(self, text: str) -> str:
        return html.unescape(text) if self._calls.entities else text

    def _another(self) -> Wait[bool]:
        """Whether an argument begins here (its opening is taken) or the call ends (its end is)."""
        yield from self._reader.space()
        calls = self._calls
        while True:
            found = yield from self._reader.accept((calls.key_open, calls.close, calls.value_end))
            if found != calls.value_end:
                break
            yield from self._reader.space()  # an end marker too many
        if not found:
            raise Malformed
        return found == calls.key_open

    def _key(self) -> Wait[tuple[str, str]]:
        key, _ = yield from self._reader.short((self._calls.key_end,), MAX_TAG)
        attributes = ""
        if self._calls.key_tag_end:
            attributes, _ = yield from self._reader.short((self._calls.key_tag_end,), MAX_TAG)
        return self._text(key), attributes

    def _argument(self, tool: Tool, key: str, attributes: str, before: str) -> Wait[None]:
        """One value as JSON, with `before` in front of it."""
        kinds = tool.kinds(key)
        told = dict(_ATTRIBUTE.findall(attributes))
        if told.get("string") == "true":
            kinds = _STRING
        elif "type" in told:
            kinds = frozenset((told["type"],))
        if kinds == _STRING:
            text = _Text(self._output.arguments, before)
            yield from self._raw(tool, text.push)
            text.end(lines=self._calls.lines)
            return
        pieces: list[str] = []
        yield from self._raw(tool, pieces.append)
        raw = "".join(pieces)
        if self._calls.lines:
            raw = raw.removesuffix("\n")
        written = to_json(raw.strip()) if told.get("string") == "false" else None
        self._output.arguments(before + (typed(raw, kinds) if written is None else written))

    def _raw(self, tool: Tool, sink: Sink) -> Wait[None]:
        if self._calls.lines:
            yield from self._reader.accept(("\n",))
        if self._calls.cdata and (yield from self._reader.accept((CDATA,))):
            closer = Closer("]]>" + self._calls.value_end)
            yield from self._reader.until_closed((closer,), sink)
            return
        ends = closers(self._calls, self._section, tool)
        yield from self._reader.until_closed(ends, sink)


def closers(calls: TaggedCalls, section: Pair, tool: Tool) -> tuple[Closer, ...]:
    """The ends of a value: its own marker, or where that was forgotten, what comes next."""
    line = "\n" if calls.lines else ""
    after_value = (calls.key_open, calls.close, calls.value_end, *section.end)
    after_call = section.begin if calls.close in section.end else (*section.end, calls.open)
    found = [
        Closer(calls.value_end, after_value),
        Closer(line + calls.close, after_call, at_end=True, keep=True),
    ]
    declared = tuple(key + calls.key_end for key in tool.properties())
    if calls.lines and declared:
        found.append(Closer(line + calls.key_open, declared, keep=True, gap=False))
    return tuple(found)


class _Text:
    """A string argument while it streams; the last line break waits for what follows it."""

    def __init__(self, sink: Sink, before: str) -> None:
        self._sink = sink
        self._before = before + '"'
        self._break = ""

    def push(self, text: str) -> None:
        text = self._break + text
        self._break = "\n" if text.endswith("\n") else ""
        if body := escaped(text.removesuffix("\n")):
            self._sink(self._before + body)
            self._before = ""

    def end(self, *, lines: bool) -> None:
        """`lines`: the last line break is the format's."""
        self._sink(self._before + ("" if lines else escaped(self._break)) + '"')
