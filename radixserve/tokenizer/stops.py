"""Stop strings in a growing text: the text before the first one, and nothing behind it.

A match is the stop string that is complete first (of those, the one that starts first), so the
result does not depend on how the text was cut into pieces.
"""

from collections.abc import Sequence


class StopMatcher:
    """Holds back only a tail that may begin a stop string. Not used any more once it matched."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`include`: the stop string that was found belongs to the text."""
        assert all(stops), "a stop string cannot be empty"
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched = ""  # the stop string that was found

    def push(self, text: str) -> str:
        """Add `text`; returns what is now known not to come behind the start of a stop string."""
        if not self._stops:
            return text
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, at, self.matched = min(found)
            self._held = ""
            return text[: end if self._include else at]
        cut = len(text) - self._tail(text)
        self._held = text[cut:]
        return text[:cut]

    def _tail(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(text)), 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0

    def flush(self) -> str:
        """The held tail, at the end of a text in which no stop string came."""
        held, self._held = self._held, ""
        return held
