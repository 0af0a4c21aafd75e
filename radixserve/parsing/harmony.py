"""Harmony, the format of gpt-oss: messages with a channel and perhaps a recipient.

`<|start|>assistant<|channel|>analysis<|message|>...<|end|>`; a recipient `to=functions.f` (behind
the role or the channel) makes the message a call. See openai/harmony, docs/format.md. Markers in a
message's text count only where a message can end, since models quote them.
"""

import re
from contextlib import suppress

from radixserve.parsing.output import Output
from radixserve.parsing.reader import Closer, Ended, Malformed, Reader, Sink, Wait
from radixserve.parsing.values import JSON, ValueMachine

START = "<|start|>"
MESSAGE = "<|message|>"
CHANNEL = "<|channel|>"
CONSTRAIN = "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
TOKENS = (START, MESSAGE, CHANNEL, *ENDS, CONSTRAIN)
TO_TOOL = "to=functions."
_MAX_HEADER = 1024
_BEGINNINGS = (CHANNEL, MESSAGE, START, " to=", CONSTRAIN)
_CLOSERS = tuple(Closer(marker, (START, CHANNEL), at_end=True) for marker in ENDS)
_HEADER_ENDS = (MESSAGE, *ENDS)
_NAME = re.compile(re.escape(TO_TOOL) + r"([^\s<]+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_NO_TOOLS = frozenset(("assistant", "user", "all"))
_THOUGHTS = "analysis"
_CHANNELS = (_THOUGHTS, "commentary", "final")


def unfinished_header(prompt: str) -> str:
    """What of the header of the answer's first message stands at the end of its prompt already."""
    _, start, message = prompt.rpartition(START + "assistant")
    header, mark, _ = message.partition(MESSAGE)
    return header + mark if start and "<|end|>" not in message and len(header) < _MAX_HEADER else ""


def recipient(header: str) -> str:
    """The tool that the message behind a header calls; "" if none."""
    found = _NAME.search(header)
    return found.group(1) if found else ""


class HarmonyMachine:
    """Reads a whole answer from `reader` into `output`."""

    def __init__(self, reader: Reader, output: Output) -> None:
        self._reader = reader
        self._output = output

    def run(self) -> Wait[None]:
        reader = self._reader
        if not (yield from reader.looking_at(_BEGINNINGS)):
            yield from self._text(self._output.content)
        while (yield from reader.char()):
            yield from self._message()

    def _message(self) -> Wait[None]:
        header, whole = yield from self._header()
        channel = header.rpartition(CHANNEL)[2].strip().split("<")[0].split(" ")[0]
        addressed = _RECIPIENT.search(header)
        name = recipient(header)
        if not whole:
            yield from self._garbage(header, channel)
        elif name:
            yield from self._call(name)
        elif addressed and addressed.group(1) not in _NO_TOOLS:
            yield from self._text(_drop)  # a built-in tool, which nobody offered
        else:
            yield from self._text(self._shown_as(channel))

    def _header(self) -> Wait[tuple[str, bool]]:
        """All before a message's text, and whether that comes."""
        reader = self._reader
        yield from reader.accept((START,))
        try:
            header, end = yield from reader.short(_HEADER_ENDS, _MAX_HEADER)
        except (Malformed, Ended):
            header = reader.advance(min(len(reader.text), reader.pos + _MAX_HEADER))
            return header, False
        if end != MESSAGE:
            reader.give_back(end)
        return header, end == MESSAGE

    def _garbage(self, header: str, channel: str) -> Wait[None]:
        """A header without a message: what can be text in it was a thought, unless it was final.

        Where the answer was cut, it is only a header.
        """
        reader = self._reader
        if reader.spent and (reader.cut or (reader.ended and _RECIPIENT.search(header))):
            return
        show = self._shown_as("final" if channel == "final" else _THOUGHTS)
        show(
            header.rpartition(CHANNEL)[2]
            .strip()
            .removeprefix(channel if channel in _CHANNELS else "")
        )
        yield from self._text(show)

    def _shown_as(self, channel: str) -> Sink:
        return self._output.reasoning if channel == _THOUGHTS else self._output.content

    def _call(self, name: str) -> Wait[None]:
        reader, output = self._reader, self._output
        reader.record()
        output.begin(name)
        try:
            yield from self._arguments()
        except (Malformed, Ended):
            shown = output.fail()
            text = reader.recorded()
            if reader.cut:
                reader.advance(len(reader.text))
            elif not shown:
                output.content(text)
            yield from self._text(_drop if shown else output.content)
            return
        output.end()
        reader.recorded()
        yield from self._text(_drop)

    def _arguments(self) -> Wait[None]:
        yield from self._reader.space()
        if (yield from self._reader.looking_at(("{",))):
            yield from ValueMachine(self._reader, JSON, self._output.arguments).run()
        elif (yield from self._reader.looking_at(_HEADER_ENDS)):
            self._output.arguments("{}")
        else:
            raise Malformed

    def _text(self, sink: Sink) -> Wait[None]:
        """A message's text, to its end or that of the answer."""
        with suppress(Ended):
            yield from self._reader.until_closed(_CLOSERS, sink)


def _drop(text: str) -> None:
    """A sink."""
