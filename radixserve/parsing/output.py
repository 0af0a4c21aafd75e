"""Where the machines put what they find: events in order, whitespace and unfinished calls held."""

from radixserve.parsing.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    Reasoning,
)
from radixserve.parsing.values import closing


class Channel:
    """Text of one kind. With `trim`, whitespace beside markers is theirs and not the text's.

    So whitespace waits for text that follows it. It goes where a marker came instead, and only
    between two pieces of text does it stay.
    """

    def __init__(self, trim: bool) -> None:
        self._trim = trim
        self._held: list[str] = []
        self.visible = False  # some text was shown
        self._after_marker = False

    def push(self, text: str) -> str:
        """What can be shown of it now."""
        if not self._trim:
            return text
        body = text.rstrip()
        if not body:
            self._held.append(text)
            return ""
        out = "".join(self._held) + body
        if self._after_marker and not self.visible:
            out = out.lstrip()
        self._held = [text[len(body) :]]
        self.visible = True
        self._after_marker = False
        return out

    def marker(self) -> None:
        """A marker was found here."""
        self._after_marker = True

    def finish(self) -> str:
        """What was held, at the end of the answer."""
        held, self._held = "".join(self._held), []
        return "" if self._after_marker else held


class Output:
    """Collects events until `take`. At most one call is open.

    `hold`: a call is shown when it is complete and not before; in a group, when all of it are.
    """

    def __init__(self, *, trim_content: bool, trim_reasoning: bool, hold: bool) -> None:
        self._content = Channel(trim_content)
        self._reasoning = Channel(trim_reasoning)
        self._reasoning.marker()
        self._hold = hold
        self._events: list[Event] = []
        self._held: list[Event] = []
        self._in_group = False
        self._group_start = 0
        self._written: list[str] | None = None  # arguments of the open call so far
        self.calls = 0  # begun and not taken back

    @property
    def content_shown(self) -> bool:
        return self._content.visible

    @property
    def call_begun(self) -> bool:
        """A call is open, or a group that has one."""
        return self._written is not None or (self._in_group and self.calls > self._group_start)

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def content(self, text: str) -> None:
        if shown := self._content.push(text):
            self._events.append(Content(shown))

    def reasoning(self, text: str) -> None:
        if shown := self._reasoning.push(text):
            self._events.append(Reasoning(shown))

    def marker(self) -> None:
        """A marker of the format was found, where content goes on later."""
        self._content.marker()

    def reasoning_ended(self) -> None:
        self._reasoning.marker()

    def stray(self, marker: str) -> None:
        """The end of reasoning that never began: text, unless all before it was nothing."""
        self._content.marker()
        if self._content.visible:
            self.content(marker)

    def finish(self) -> None:
        for kind, text in (
            (Reasoning, self._reasoning.finish()),
            (Content, self._content.finish()),
        ):
            if text:
                self._events.append(kind(text))

    def begin(self, name: str) -> None:
        assert self._written is None, "one call at a time"
        self._content.marker()
        self._written = []
        self._add(CallBegin(self.calls, name))
        self.calls += 1

    def arguments(self, text: str) -> None:
        assert self._written is not None, "arguments belong to a call"
        if text:
            self._written.append(text)
            self._add(CallArguments(self.calls - 1, text))

    def end(self) -> None:
        """The open call is complete."""
        self._written = None
        self._add(CallEnd(self.calls - 1))
        if not self._in_group:
            self._show()

    def fail(self) -> bool:
        """The open call or group, if any, will not be complete. Whether its text is used up.

        What is held is taken back. What was shown stays, and gets the closing brackets it lacks.
        """
        begun = self.call_begun
        written, self._written = self._written, None
        self._in_group = False
        if self._hold:
            self.calls -= sum(isinstance(event, CallBegin) for event in self._held)
            self._held.clear()
            return False
        if written is not None:
            text = "".join(written)
            index = self.calls - 1
            if rest := closing(text) if text else "{}":
                self._add(CallArguments(index, rest))
            self._add(CallEnd(index, complete=False))
        return begun

    def begin_group(self) -> None:
        """All calls until `end_group` are complete together."""
        self._in_group = True
        self._group_start = self.calls

    def end_group(self) -> None:
        self._in_group = False
        self._show()

    def _add(self, event: Event) -> None:
        (self._held if self._hold else self._events).append(event)

    def _show(self) -> None:
        self._events += self._held
        self._held.clear()
