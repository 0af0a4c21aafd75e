"""An answer's text as it grows, for machines that are written as if all of it were there.

A machine is a generator. It takes text from a `Reader` and yields where it needs more; whatever it
decides must not depend on how the text was cut. Only what is undecided stays in the buffer, so no
text is looked at more than a bounded number of times.
"""

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeAlias, TypeVar

from msgspec import Struct

T = TypeVar("T")
Wait: TypeAlias = Generator[None, None, T]
Sink: TypeAlias = Callable[[str], object]

_SPACE = re.compile(r"\s+")
_MAX_GAP = 64  # whitespace looked across between an end marker and what must follow it


class Malformed(Exception):
    """The text is not what the format says."""


class Ended(Exception):
    """The answer ended where the format goes on."""


class Finder:
    """Finds the first of some markers, the longest of those that begin at one place."""

    def __init__(self, markers: Iterable[str]) -> None:
        ordered = sorted(set(markers), key=len, reverse=True)
        assert all(ordered), "a marker cannot be empty"
        self._regex = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._begun = frozenset(m[:n] for m in ordered for n in range(1, len(m)))
        self._longest = len(ordered[0]) if ordered else 0

    def find(self, text: str, pos: int, ended: bool) -> tuple[int, str]:
        """Where the first marker is, and which. ("", if none is certain yet.)

        Without a marker, what comes before the place is certain to be none. `ended`: no more text
        will come.
        """
        undecided = len(text) if ended else self._tail(text, pos)
        found = self._regex.search(text, pos)
        if found and found.start() < undecided:
            return found.start(), found.group()
        return undecided, ""

    def _tail(self, text: str, pos: int) -> int:
        """Where the earliest marker begins of which `text` ends with a part."""
        for start in range(max(pos, len(text) - self._longest + 1), len(text)):
            if text[start:] in self._begun:
                return start
        return len(text)


@lru_cache(maxsize=256)
def finder(markers: tuple[str, ...]) -> Finder:
    return Finder(markers)


class Closer(Struct, frozen=True):
    """A marker that ends a raw value only where the right thing follows it.

    Raw values may contain their own end marker as text. `follow`: what must come next (whitespace
    before it is passed over if `gap`); empty for anything. `at_end`: the end of the answer will do.
    `keep`: the marker stays in the text, so the value's own end was forgotten; an answer that was
    cut behind it tells nothing of that.
    """

    marker: str
    follow: tuple[str, ...] = ()
    at_end: bool = False
    keep: bool = False
    gap: bool = True

    def fits(self, text: str, pos: int, ended: bool, cut: bool) -> bool | None:
        """Whether what follows at `pos` is right; None while that is undecided."""
        if not self.follow:
            return True
        start = pos
        while self.gap and pos < len(text) and text[pos].isspace() and pos - start < _MAX_GAP:
            pos += 1
        if any(text.startswith(f, pos) for f in self.follow):
            return True
        rest = text[pos : pos + max(map(len, self.follow))]
        if not any(f.startswith(rest) for f in self.follow):
            return False
        return (self.at_end and not (cut and self.keep)) if ended else None


class Reader:
    """`text[pos:]` has come and is not taken yet.

    `ended` is set when no more will come; `cut` then tells that the answer did not end by itself.
    """

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.ended = False
        self.cut = False
        self._record: list[str] | None = None

    def feed(self, text: str) -> None:
        self.text = self.text[self.pos :] + text
        self.pos = 0

    def advance(self, to: int) -> str:
        """Takes the text up to position `to`."""
        taken = self.text[self.pos : to]
        self.pos = to
        if self._record is not None:
            self._record.append(taken)
        return taken

    def give_back(self, text: str) -> None:
        """Undo the last `advance`, which took `text`."""
        self.pos -= len(text)
        assert self.text.startswith(text, self.pos), "only the last text can be given back"
        if self._record is not None:
            self._record.pop()

    def record(self, text: str = "") -> None:
        """Remember what is taken from here on, as if `text` had just been taken."""
        self._record = [text]

    def recorded(self) -> str:
        """All that was taken since `record`; ends the recording."""
        taken = "".join(self._record or ())
        self._record = None
        return taken

    @property
    def spent(self) -> bool:
        """All text that came was taken."""
        return self.pos == len(self.text)

    def char(self) -> Wait[str]:
        """The next character, not taken; "" at the end of the answer."""
        while self.pos == len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.pos]

    def space(self) -> Wait[str]:
        """Takes whitespace."""
        runs = []
        while (yield from self.char()).isspace():
            found = _SPACE.match(self.text, self.pos)
            assert found is not None, "the next character is a space"
            runs.append(self.advance(found.end()))
        return "".join(runs)

    def looking_at(self, options: tuple[str, ...]) -> Wait[str]:
        """The longest of `options` that comes next, not taken; "" if none does."""
        longest = max(map(len, options))
        while True:
            rest = self.text[self.pos : self.pos + longest]
            open_ = not self.ended and any(
                len(o) > len(rest) and o.startswith(rest) for o in options
            )
            if not open_:
                return max((o for o in options if rest.startswith(o)), key=len, default="")
            yield

    def accept(self, options: tuple[str, ...]) -> Wait[str]:
        """As `looking_at`, and takes it."""
        found = yield from self.looking_at(options)
        self.advance(self.pos + len(found))
        return found

    def skip_begun(self, markers: tuple[str, ...]) -> bool:
        """Takes what is left of the text if the answer was cut inside one of `markers` there."""
        rest = self.text[self.pos :]
        begun = self.cut and rest != "" and any(m.startswith(rest) for m in markers)
        if begun:
            self.advance(len(self.text))
        return begun

    def until(self, markers: tuple[str, ...], sink: Sink) -> Wait[str]:
        """Gives the text before the first marker to `sink`; takes the marker and returns it.

        "" if the answer ends first: all its text went to `sink`.
        """
        search = finder(markers)
        while True:
            at, marker = search.find(self.text, self.pos, self.ended)
            if at > self.pos:
                sink(self.advance(at))
            if marker:
                self.advance(at + len(marker))
                return marker
            if self.ended:
                return ""
            yield

    def until_closed(self, closers: tuple[Closer, ...], sink: Sink) -> Wait[Closer]:
        """As `until`, for the first marker with the right thing behind it. Raises Ended."""
        search = finder(tuple(closer.marker for closer in closers))
        by_marker = {closer.marker: closer for closer in closers}
        while True:
            at, marker = search.find(self.text, self.pos, self.ended)
            if at > self.pos:
                sink(self.advance(at))
            if marker:
                closer = by_marker[marker]
                fits = closer.fits(self.text, at + len(marker), self.ended, self.cut)
                if fits:
                    self.advance(at if closer.keep else at + len(marker))
                    return closer
                if fits is not None:
                    sink(self.advance(at + 1))
                    continue
            elif self.ended:
                raise Ended
            yield

    def short(self, markers: tuple[str, ...], limit: int) -> Wait[tuple[str, str]]:
        """The text before the first marker, and the marker, both taken.

        Raises Malformed if it is longer than `limit`, Ended if no marker comes.
        """
        search = finder(markers)
        window = limit + max(map(len, markers))
        while True:
            text = self.text[self.pos : self.pos + window]
            at, marker = search.find(text, 0, self.ended)
            if at > limit:
                raise Malformed
            at += self.pos
            if marker:
                return self.advance(at), self.advance(at + len(marker))
            if self.ended:
                self.advance(at)
                raise Ended
            yield
