"""One answer's parser: text in as it streams, events out."""

from collections.abc import Sequence

from radixserve.parsing.answer import AnswerMachine
from radixserve.parsing.events import Event
from radixserve.parsing.format import Format
from radixserve.parsing.harmony import HarmonyMachine, unfinished_header
from radixserve.parsing.output import Output
from radixserve.parsing.reader import Reader
from radixserve.parsing.tools import Tool


class Parser:
    """`feed` the answer's text in any pieces, then `finish` once.

    Content, reasoning and calls do not depend on the pieces. Text goes out as soon as it cannot be
    a marker's beginning, or whitespace that belongs to one. No input raises.

    `prompt`: the text the model continues, or its end; it may have begun the reasoning.
    `hold_calls`: a call goes out when it is complete. Otherwise its arguments stream, and a call
    that is cut off ends with `complete=False`. What begins like a call and is none is content.
    """

    def __init__(
        self,
        format: Format,
        tools: Sequence[Tool] = (),
        *,
        prompt: str = "",
        hold_calls: bool = True,
    ) -> None:
        thoughts = format.thoughts
        self._reader = Reader()
        self._output = Output(
            trim_content=format.trim,
            trim_reasoning=thoughts is not None and thoughts.trim,
            hold=hold_calls,
        )
        if format.harmony:
            self._reader.feed(unfinished_header(prompt))
            self._machine = HarmonyMachine(self._reader, self._output).run()
        else:
            if format.begun and prompt.endswith(format.begun):
                self._reader.feed(format.begun)
            in_thoughts = begins_in_thoughts(format, prompt)
            answer = AnswerMachine(self._reader, self._output, format, tools)
            self._machine = answer.run(in_thoughts=in_thoughts)

    def feed(self, text: str) -> list[Event]:
        self._reader.feed(text)
        return self._run()

    def finish(self, *, cut: bool = False) -> list[Event]:
        """The last events. `cut`: the answer did not end by itself, but at a limit.

        Of a call that is not complete then, nothing goes out; without `cut` its text is content.
        """
        self._reader.ended = True
        self._reader.cut = cut
        events = self._run()
        self._output.finish()
        return events + self._output.take()

    def _run(self) -> list[Event]:
        next(self._machine, None)
        return self._output.take()


def begins_in_thoughts(format: Format, prompt: str) -> bool:
    """Whether an answer to `prompt`, or its end, begins inside reasoning."""
    thoughts = format.thoughts
    return thoughts is not None and prompt.rstrip().endswith(thoughts.begin)
