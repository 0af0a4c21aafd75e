"""Rules of arguments between tags: strings stand there as they are, all else as JSON.

What a raw value means its schema or an attribute tells the parser (`tagged_calls.py`), so a string
must not look like another type that the schema allows too.
"""

import html
import json
import re
from collections.abc import Sequence
from typing import Any

from radixserve.parsing.format import Pair, TaggedCalls
from radixserve.parsing.grammars.lark import CHAR, NEW_KEY, SPACE, Lark, letters, literal, one_of
from radixserve.parsing.grammars.schema import (
    Alternative,
    Unenforceable,
    alternatives,
    judged,
    may_be_empty,
    parameters,
    string_expression,
)
from radixserve.parsing.grammars.spelled import Spelled
from radixserve.parsing.reader import Closer
from radixserve.parsing.tagged_calls import CDATA, MAX_TAG, closers
from radixserve.parsing.tools import KINDS, Tool, typed
from radixserve.parsing.values import JSON

_NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_LOOKS = {  # how other types look, to a parser that takes them for what they look like
    "null": "(?i:null|none)",
    "boolean": "(?i:true|false)",
    "integer": _NUMBER,
    "number": _NUMBER,
    "object": rf"[{{(]{CHAR}*",
    "array": rf"[\[(]{CHAR}*",
}
_WORDS = {"null": ("null", "None"), "boolean": ("true", "false", "True", "False")}


class Arguments:
    """Writes the rules of one tool's arguments; `rules` are those that `all` stands on."""

    def __init__(
        self, lark: Lark, calls: TaggedCalls, section: Pair, tool: Tool, name: str
    ) -> None:
        """`name`: what the names of all rules begin with, lower case."""
        self._lark = lark
        self._calls = calls
        self._tool = tool
        self._name = name
        self._root = parameters(tool)
        self._line = "\n" if calls.lines else ""
        self._unlike = [
            f"{CHAR}*{_closing(closer)}{CHAR}*" for closer in closers(calls, section, tool)
        ]
        self._unlike.append(f"{CHAR}*{letters(calls.value_end)}{SPACE}*")  # its end comes next
        if calls.cdata:
            self._unlike.append(f"{letters(CDATA)}{CHAR}*")
        self._inner = Spelled(lark, JSON, f"{name}_j", self._unlike)
        self.rules = self._inner.rules

    def all(self) -> str:
        """An expression of all arguments, in the order of the schema. Raises Unenforceable."""
        named = self._root.get("properties") or {}
        required = self._root.get("required") or []
        more = self._root.get("additionalProperties", not named)
        unknown = [word for word in required if word not in named]
        if unknown:
            raise Unenforceable(f"required {unknown[0]}, which is no property")
        parts = []
        for i, (key, schema) in enumerate(named.items()):
            rule = f"{self._name}_{i}"
            self._argument(rule, literal(self._spelled(key)), key, schema)
            parts.append(rule if key in required else f"{rule}?")
        if more is not False:
            new = f"{self._name}_KEY".upper()
            self.rules.append(f"{new}: /{NEW_KEY}/ & ~/{one_of(named)}/")
            self._argument(f"{self._name}_more", new, "", more)
            parts.append(f"{self._name}_more*")
        return " ".join(parts)

    def _spelled(self, key: str) -> str:
        """Raises Unenforceable for what would not be read as this key."""
        written = html.escape(key) if self._calls.entities else key
        end = self._calls.key_end
        if len(written) > MAX_TAG or (written + end).index(end) < len(written):
            raise Unenforceable(f"the argument {key[:MAX_TAG]}, which has no place in a tag")
        return written

    def _argument(self, rule: str, word: str, key: str, schema: Any) -> None:
        """The rule of one argument. `word`: an expression of its key."""
        lark, calls = self._lark, self._calls
        ways = self._ways(rule, key, schema)
        if not ways:
            raise Unenforceable(f"{key}, for which the schema allows nothing")
        begin = f"GAP? {lark.marker(calls.key_open)} {word} {lark.marker(calls.key_end)}"
        self.rules.append(f"{rule}: {begin} ({' | '.join(ways)})")

    def _ways(self, rule: str, key: str, schema: Any) -> list[str]:
        """What may stand behind a key, to the end of the argument."""
        found = list(alternatives(schema, self._root))
        told = bool(self._calls.typed_by)
        if not told and {f.kind for f in found if f.free} >= set(KINDS) - {"integer"}:
            return [self._raw(f"{rule}_any", "")]  # whatever it looks like
        kinds = self._tool.kinds(key) or frozenset(KINDS)
        strings = [f for f in found if f.kind == "string"]
        ways = [
            self._string(f"{rule}_s{i}", f, frozenset() if told else kinds)
            for i, f in enumerate(strings)
        ]
        beside = any(f.values is None for f in strings) and not told
        others = [f for f in found if f.kind != "string" and f.values != ()]
        for i, f in enumerate(others):
            ways.append(self._beside(f"{rule}_o{i}", f) if beside else self._json(f))
        return [way for way in ways if way]

    def _begun(self, kind: str) -> str:
        """What stands between a key and a value of this kind."""
        by = self._calls.typed_by
        told = {
            "": "",
            "string": f' string="{"true" if kind == "string" else "false"}"',
            "type": f' type="{"number" if kind == "integer" else kind}"',
        }[by]
        tag = f" {self._lark.marker(self._calls.key_tag_end)}" if self._calls.key_tag_end else ""
        if tag and not by and self._calls.key_tag_end.startswith("<"):
            tag = f" GAP?{tag}"  # a tag of its own
        line = f" {literal(self._line)}" if self._line else ""
        return f"{literal(told) if told else ''}{tag}{line}"

    def _end(self) -> str:
        return self._lark.marker(self._line + self._calls.value_end)

    def _json(self, found: Alternative) -> str:
        if found.values is not None:
            value = f"({' | '.join(map(self._inner.spelled, found.values))})"
        elif found.kind in _WORDS:
            value = f"({' | '.join(map(literal, _WORDS[found.kind]))})"
        else:
            schema = {key: v for key, v in found.schema.items() if key != "nullable"}
            value = self._inner.value(schema | {"type": found.kind}, self._root)
        return f"{self._begun(found.kind)} {value} {self._end()}"

    def _beside(self, rule: str, found: Alternative) -> str:
        """A value of another type where any string may stand too.

        The longest lexeme counts, so what looks like a string at first is one with its end.
        """
        if found.values is not None:
            expression = one_of([json.dumps(value) for value in found.values])
        elif found.kind in ("object", "array"):
            return self._json(found)  # strings that begin like that are none
        elif not found.free:
            raise Unenforceable("bounds of a number that may be a string too")
        else:
            words = {"integer": r"-?(0|[1-9][0-9]*)", "number": _NUMBER}
            expression = words.get(found.kind) or one_of(_WORDS[found.kind])
        end = self._line + self._calls.value_end
        self.rules += self._lark.until(rule, [end], f"/{expression}/", empty=False)
        return f"{self._begun(found.kind)} {rule}"

    def _string(self, rule: str, found: Alternative, kinds: frozenset[str]) -> str:
        """A string that is not taken for another of `kinds`; "" if there is none."""
        if found.values is not None:
            fit = [v for v in found.values if not kinds or typed(v, kinds) == _quoted(v)]
            fit = [v for v in fit if not any(re.fullmatch(u, v) for u in self._unlike)]
            texts = [f"{literal(value)} {self._end()}" if value else self._end() for value in fit]
            return f"{self._begun('string')} ({' | '.join(texts)})" if fit else ""
        expression = string_expression(found)
        looks = [f"{SPACE}*({look}){SPACE}*" for kind, look in _LOOKS.items() if kind in kinds]
        raw = self._raw(rule, expression, looks, empty=may_be_empty(found))
        return " | ".join((raw, *judged(found)))

    def _raw(
        self, rule: str, expression: str, looks: Sequence[str] = (), *, empty: bool = True
    ) -> str:
        end = self._line + self._calls.value_end
        unlike = (*looks, *self._unlike)
        self.rules += self._lark.until(rule, [end], expression, unlike=unlike, empty=empty)
        return f"{self._begun('string')} {rule}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _closing(closer: Closer) -> str:
    """An expression of what ends a value to the parser."""
    gap = f"{SPACE}*" if closer.gap else ""  # a bound is too complex for llguidance's lexer
    return f"{letters(closer.marker)}{gap}{one_of(closer.follow)}"
