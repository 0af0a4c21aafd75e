"""Streams one value that a model wrote as strict JSON, whatever it was written in.

JSON itself keeps its spelling and spacing; raw control characters in strings, unknown escapes,
Python's spelling of literals and a comma before a closing bracket are put right. Other dialects:
Python literals, and Gemma 4's objects with bare keys. Nothing here recurses.
"""

import json
import math
import re
import sys

from msgspec import Struct

from radixserve.parsing.reader import Ended, Malformed, Reader, Sink, Wait

MAX_DEPTH = 128  # brackets open at one time
_MAX_ATOM = 1024  # characters of a number, literal or bare word

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_ATOM = re.compile(rf"[^\s,:\]\[(){{}}\"']{{0,{_MAX_ATOM + 1}}}")
_BARE = re.compile(rf"[^,\]}}]{{0,{_MAX_ATOM + 1}}}")
_HEX_DIGITS = re.compile(r"[0-9a-fA-F]+")
_HEX = {"u": 4, "x": 2, "U": 8}
_LITERALS = {
    "true": "true", "false": "false", "null": "null",
    "True": "true", "False": "false", "None": "null",
}  # fmt: skip
_PYTHON_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
    "\n": "", "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip


class Dialect(Struct, frozen=True):
    """How a model spells values. `bare`: keys, and strings that are one word, without quotes."""

    quotes: tuple[str, ...]
    escapes: bool = True
    python: bool = False
    bare: bool = False


JSON = Dialect(('"',))
PYTHON = Dialect(("'''", '"""', "'", '"'), python=True)
GEMMA = Dialect(('<|"|>',), escapes=False, bare=True)


def escaped(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class ValueMachine:
    """One value from `reader`, as pieces of JSON to `sink`.

    No piece ends where more must follow: after any of them the text is complete but for the end of
    a string and closing brackets (`closing`).
    """

    def __init__(self, reader: Reader, dialect: Dialect, sink: Sink, before: str = "") -> None:
        """`before` goes in front of the first piece."""
        self._reader = reader
        self._dialect = dialect
        self._sink = sink
        self._before = [before]  # spaces, comma and key that go out with what follows them
        self._open: list[str] = []  # the closing brackets that are due
        self._empty = True  # nothing came yet since the last opening bracket
        pairs = {"{": "}", "[": "]"}
        self._brackets = pairs | {"(": ")"} if dialect.python else pairs

    def run(self) -> Wait[None]:
        """Raises Malformed, and Ended where the value is not complete."""
        yield from self._value()
        while self._open:
            yield from self._member()

    def _emit(self, text: str) -> None:
        self._before.append(text)
        self._sink("".join(self._before))
        self._before.clear()

    def _space(self) -> Wait[None]:
        space = yield from self._reader.space()
        if space:
            self._before.append(space if not space.strip(" \t\r\n") else " ")

    def _next(self) -> Wait[str]:
        yield from self._space()
        char = yield from self._reader.char()
        if not char:
            raise Ended
        return char

    def _member(self) -> Wait[None]:
        """What comes next inside brackets: a member, or the closing bracket."""
        char = yield from self._next()
        if char == self._open[-1]:
            return self._close()
        if not self._empty:
            self._skip(",", char)
            comma = len(self._before)
            self._before.append(",")
            if (yield from self._next()) == self._open[-1]:
                del self._before[comma]
                return self._close()
        if self._open[-1] == "}":
            yield from self._key()
        yield from self._value()
        return None

    def _skip(self, wanted: str, char: str) -> None:
        if char != wanted:
            raise Malformed
        self._reader.advance(self._reader.pos + 1)

    def _close(self) -> None:
        bracket = self._open.pop()
        self._reader.advance(self._reader.pos + 1)
        self._emit("]" if bracket == ")" else bracket)
        self._empty = False

    def _key(self) -> Wait[None]:
        reader = self._reader
        quote = yield from reader.looking_at(self._dialect.quotes)
        if quote:
            pieces: list[str] = []
            reader.advance(reader.pos + len(quote))
            yield from self._string(quote, pieces.append)
            self._before.append("".join(pieces))
            self._skip(":", (yield from self._next()))
            self._before.append(":")
        elif self._dialect.bare:
            key, _ = yield from reader.short((":",), _MAX_ATOM)
            self._before.append(json.dumps(key.strip(), ensure_ascii=False) + ":")
        else:
            raise Malformed

    def _value(self) -> Wait[None]:
        char = yield from self._next()
        if char in self._brackets:
            if len(self._open) == MAX_DEPTH:
                raise Malformed
            self._reader.advance(self._reader.pos + 1)
            self._open.append(self._brackets[char])
            self._emit("[" if char == "(" else char)
            self._empty = True
            return
        quote = yield from self._reader.accept(self._dialect.quotes)
        if quote:
            yield from self._string(quote, self._emit)
        else:
            self._emit((yield from self._atom()))
        self._empty = False

    def _string(self, quote: str, sink: Sink) -> Wait[None]:
        sink('"')
        marks = (quote, "\\") if self._dialect.escapes else (quote,)
        while True:
            mark = yield from self._reader.until(marks, lambda text: sink(escaped(text)))
            if not mark:
                raise Ended
            if mark == quote:
                break
            sink((yield from self._escape()))
        sink('"')

    def _escape(self) -> Wait[str]:
        """What a backslash and the characters after it stand for, as JSON."""
        reader = self._reader
        kind = yield from reader.char()
        if not kind:
            raise Ended
        reader.advance(reader.pos + 1)
        if not self._dialect.python and kind in '"\\/bfnrt':
            return "\\" + kind
        if kind in _HEX and (kind == "u" or self._dialect.python):
            return (yield from self._code(kind))
        if self._dialect.python and kind in _PYTHON_ESCAPES:
            return escaped(_PYTHON_ESCAPES[kind])
        return escaped(kind if kind in "'`" else "\\" + kind)

    def _code(self, kind: str) -> Wait[str]:
        """A character by its number in hex; a backslash is only that where no number follows."""
        reader, size = self._reader, _HEX[kind]
        while len(reader.text) - reader.pos < size:
            if reader.ended:
                raise Ended
            yield
        digits = reader.text[reader.pos : reader.pos + size]
        code = int(digits, 16) if _HEX_DIGITS.fullmatch(digits) else sys.maxunicode + 1
        if code > sys.maxunicode:
            return escaped("\\" + kind)
        reader.advance(reader.pos + size)
        if size == 4 or 0xD800 <= code < 0xE000:
            return f"\\u{digits[-4:]}"
        return escaped(chr(code))

    def _atom(self) -> Wait[str]:
        """A number, a literal, or (where the dialect has them) a bare word, as JSON."""
        reader = self._reader
        pattern = _BARE if self._dialect.bare else _ATOM
        while True:
            found = pattern.match(reader.text, reader.pos)
            assert found is not None, "the pattern matches nothing too"
            if len(found.group()) > _MAX_ATOM:
                raise Malformed
            if found.end() < len(reader.text):
                break
            if reader.ended:
                if self._open:
                    raise Ended  # it may have gone on
                break
            yield
        return spelled(reader.advance(found.end()).strip(), self._dialect)


def spelled(atom: str, dialect: Dialect) -> str:
    """A number or literal as JSON spells it. Raises Malformed."""
    if atom in _LITERALS:
        return _LITERALS[atom]
    if _NUMBER.fullmatch(atom):
        return atom
    if dialect.bare and atom:
        return json.dumps(atom, ensure_ascii=False)
    if dialect.python:
        return _python_number(atom)
    raise Malformed


def _python_number(atom: str) -> str:
    for read in (lambda text: int(text, 0), float):
        try:
            number = read(atom)
        except ValueError:
            continue
        if isinstance(number, int) or math.isfinite(number):
            return json.dumps(number)
    raise Malformed


_PARTS = re.compile(r'"(?:[^"\\]|\\.)*("?)|[\[\]{}]', re.DOTALL)


def closing(text: str) -> str:
    """What is missing at the end of `text`, the beginning of a value from a `ValueMachine`."""
    due: list[str] = []
    for part in _PARTS.finditer(text):
        char = part.group()[0]
        if char == '"':
            if not part.group(1):
                return '"' + "".join(reversed(due))
        elif char in "[{":
            due.append("]" if char == "[" else "}")
        else:
            due.pop()
    return "".join(reversed(due))


def to_json(text: str, dialect: Dialect = JSON) -> str | None:
    """The one value that `text` is, as strict JSON; None if it is none."""
    reader = Reader()
    reader.feed(text)
    reader.ended = True
    pieces: list[str] = []
    try:
        for _ in ValueMachine(reader, dialect, pieces.append).run():
            return None
        for _ in reader.space():
            return None
    except (Malformed, Ended):
        return None
    return "".join(pieces).strip() if reader.spent else None
