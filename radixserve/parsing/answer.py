"""Reads answers of all formats but Harmony: content, reasoning, and sections of calls."""

from collections.abc import Collection, Sequence

from radixserve.parsing.format import Format, JsonCalls, NamedCalls, Pair, PythonCalls, TaggedCalls
from radixserve.parsing.json_calls import JsonCallMachine
from radixserve.parsing.named_calls import NamedCallMachine
from radixserve.parsing.output import Output
from radixserve.parsing.python_calls import PythonCallMachine
from radixserve.parsing.reader import Ended, Malformed, Reader, Sink, Wait
from radixserve.parsing.tagged_calls import TaggedCallMachine
from radixserve.parsing.tools import Tool


class AnswerMachine:
    """Reads a whole answer from `reader` into `output`."""

    def __init__(
        self, reader: Reader, output: Output, format: Format, tools: Sequence[Tool]
    ) -> None:
        self._reader = reader
        self._output = output
        self._format = format
        self._tools = {tool.name: tool for tool in tools}
        self._section = format.section or Pair(())
        self._openers = self._call_openers()
        each = format.calls.each if isinstance(format.calls, NamedCalls) else None
        self._call_ends = (*self._section.end, *(each.end if each else ()))
        thoughts = format.thoughts
        self._think = thoughts.begin if thoughts else ()
        self._thought = thoughts.end if thoughts else ()

    def _call_openers(self) -> tuple[str, ...]:
        """What begins calls inside a section; models forget the section's own marker before it."""
        calls = self._format.calls
        if isinstance(calls, NamedCalls) and calls.each:
            return calls.each.begin
        return (calls.open,) if isinstance(calls, TaggedCalls) and calls.open else ()

    def run(self, *, in_thoughts: bool) -> Wait[None]:
        """`in_thoughts`: the prompt has begun the reasoning."""
        if in_thoughts:
            yield from self._thoughts(begun=True)
        else:
            yield from self._unmarked()
        section, silent = self._section, self._format.silent
        markers = (*self._think, *self._thought, *section.begin, *self._openers, *silent)
        while marker := (yield from self._reader.until(markers, self._output.content)):
            if marker in self._think:
                yield from self._thought_marker(marker)
            elif marker in silent:
                self._output.marker()
            elif marker in self._thought:
                self._output.stray(marker)
            else:
                yield from self._calls(marker, self._output.content)

    def _thought_marker(self, marker: str) -> Wait[None]:
        """Reasoning behind its first marker, where that is one."""
        thoughts = self._format.thoughts
        if self._output.content_shown and not (thoughts and thoughts.anywhere):
            self._output.content(marker)
        else:
            yield from self._thoughts()

    def _thoughts(self, *, begun: bool = False) -> Wait[None]:
        """Reasoning, behind its marker, to its end or to calls inside it."""
        thoughts, output = self._format.thoughts, self._output
        assert thoughts is not None, "its marker was found"
        output.marker()
        calls = (*self._section.begin, *self._openers) if thoughts.calls_inside else ()
        if begun and thoughts.trim:
            yield from self._reader.space()
            yield from self._reader.accept(thoughts.begin)  # some models repeat it
        marker = ""
        while marker not in thoughts.end:
            marker = yield from self._reader.until((*thoughts.end, *calls), output.reasoning)
            if not marker:
                return
            before = output.calls
            if marker in calls:
                yield from self._calls(marker, output.reasoning)
            if output.calls > before:
                break
        output.reasoning_ended()
        yield from self._unmarked()

    def _unmarked(self) -> Wait[None]:
        """Calls without markers, if the answer begins with some."""
        if not self._format.unmarked or not self._tools:
            return
        space = yield from self._reader.space()
        while (yield from self._more()):
            self._reader.record(space)
            calls = self._machine(set(self._tools))
            if not (yield from self._guarded(calls, self._output.content)):
                return
            space = yield from self._gap()
        self._output.content(space)

    def _calls(self, marker: str, back: Sink) -> Wait[None]:
        """Calls, behind a section's first marker or a call's; text that is none goes `back`."""
        opened = marker in self._section.begin
        if opened and self._format.many:
            return (yield from self._open_section(marker, back))
        self._reader.record(marker)
        found = yield from self._guarded(self._one(opened=not opened), back)
        while found:
            space = yield from self._gap()
            if self._section.end and (yield from self._reader.accept(self._section.end)):
                self._output.marker()
                space = yield from self._reader.space()
                return (yield from self._behind(space))
            if self._reader.skip_begun(self._call_ends):
                return self._output.marker()
            if not (yield from self._more()):
                return (yield from self._behind(space))
            self._reader.record(space)
            found = yield from self._guarded(self._one(opened=False), self._output.content)
        return None

    def _behind(self, space: str) -> Wait[None]:
        """Takes what a limit left of another call's first marker: no content begins like that."""
        openers = (*self._section.begin, *self._openers)
        yield from self._reader.looking_at(openers)
        if not self._reader.skip_begun(openers):
            self._output.content(space)

    def _open_section(self, marker: str, back: Sink) -> Wait[None]:
        """A section with any number of calls. Text beside them is nothing, if there are some."""
        text, failed = [marker], list[str]()
        before = self._output.calls
        ends = self._section.end
        while True:
            found = yield from self._reader.until((*self._openers, *ends), text.append)
            if found not in self._openers:
                break
            self._reader.record(found)
            if not (yield from self._guarded(self._one(opened=True), failed.append)):
                text += failed[-1:]
        if found:
            self._output.marker()
        elif self._reader.cut:
            return
        lost = failed if self._output.calls > before else text
        if "".join(lost).strip() not in ("", marker):
            back("".join(lost) + found)

    def _guarded(self, machine: Wait[None], back: Sink) -> Wait[bool]:
        """Whether `machine` finds what it reads; else the text recorded until then goes `back`.

        But what a client has seen as a call is not text as well; and a call that was cut off by a
        limit is not worth showing.
        """
        reader = self._reader
        try:
            yield from machine
        except (Malformed, Ended):
            begun = self._output.call_begun
            shown = self._output.fail()
            text = reader.recorded()
            if reader.cut and (begun or not self._format.unmarked):
                reader.advance(len(reader.text))
            elif not shown:
                back(text)
            return False
        reader.recorded()
        return True

    def _one(self, *, opened: bool) -> Wait[None]:
        """One call with the markers around it. `opened`: the first of them was found."""
        reader = self._reader
        if self._openers and not opened:
            yield from reader.space()
            if not (yield from reader.accept(self._openers)):
                raise Malformed
        yield from self._machine()
        calls = self._format.calls
        if isinstance(calls, NamedCalls) and calls.each:
            yield from reader.space()
            yield from reader.accept(calls.each.end)

    def _machine(self, known: Collection[str] | None = None) -> Wait[None]:
        reader, output, calls = self._reader, self._output, self._format.calls
        match calls:
            case JsonCalls():
                return JsonCallMachine(reader, output, calls, known).run()
            case NamedCalls():
                return NamedCallMachine(reader, output, calls).run()
            case TaggedCalls():
                return TaggedCallMachine(reader, output, calls, self._tools, self._section).run()
            case _:
                return PythonCallMachine(reader, output, known).run()

    def _gap(self) -> Wait[str]:
        """Takes what may stand between two calls."""
        space = yield from self._reader.space()
        if isinstance(self._format.calls, JsonCalls):
            space += yield from self._reader.accept((";",))
            space += yield from self._reader.space()
        return space

    def _more(self) -> Wait[str]:
        """How another call begins, if one comes next."""
        calls = self._format.calls
        if isinstance(calls, JsonCalls):
            return (yield from self._reader.looking_at(("{", "[")))
        if isinstance(calls, PythonCalls):
            return (yield from self._reader.looking_at(("[",)))
        if not self._openers:
            return ""
        return (yield from self._reader.looking_at(self._openers))
