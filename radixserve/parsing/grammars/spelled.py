"""Rules of values that fit a JSON schema, in another spelling than JSON's (`values.Dialect`)."""

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from radixserve.parsing.grammars.lark import NEW_KEY, Lark, letters, literal, no_text
from radixserve.parsing.grammars.schema import (
    SHARED,
    Alternative,
    Schema,
    Unenforceable,
    alternatives,
    judged,
    lengths,
    may_be_empty,
    string_expression,
)
from radixserve.parsing.values import JSON, Dialect

_BARE_KEY = re.compile(r"[^\s:,{}\[\]<>]([^:,{}\[\]<>]*[^\s:,{}\[\]<>])?")
_CODE = r"u([0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})"
_INSIDE = {"DOUBLE": ('"', r"[^\"\\\n]"), "SINGLE": ("'", r"[^'\\\n]")}
_ESCAPE = rf"\\([\"'\\nrt]|x[0-9a-fA-F]{{2}}|{_CODE})"
_PLAIN = r"[^\\\n]"  # what stands in a string without escapes
_PLAIN_JSON = r"[^\"\\\x00-\x1f]"
_INSIDE_JSON = {"DOUBLE": ('"', _PLAIN_JSON)}
_ESCAPE_JSON = rf"\\([\"\\\/bfnrt]|{_CODE})"
_JSON_KEY = r"([^\"\\\x00-\x1f]|\\[\"\\bfnrt])*"  # of which each has one spelling
_KEYWORD = re.compile(r"[^\W\d]\w*")
_BARE_KEYS = "[A-Za-z_][A-Za-z0-9_ .-]{0,63}"
_NUMBERS = ("number", "integer")
EMPTY = '""'
COMMA = '"," " "?'
Key = Callable[[str], str]  # what is written for a key, up to its value
NewKey = Callable[[Collection[str]], str]  # for any other key than these


class Spelled:
    """Writes rules for one set of schemas. `rules` are those that the names given out stand for."""

    def __init__(self, lark: Lark, dialect: Dialect, name: str, unlike: Sequence[str] = ()) -> None:
        """`name`: what the names of all its rules begin with, lower case.

        `unlike`: expressions of what no string is, with its quotes, where those are quotes.
        """
        self._lark = lark
        self._dialect = dialect
        self._name = name
        self._unlike = unlike
        self._json = dialect == JSON
        self._gap = " " if dialect.python or self._json else ""
        self._made: dict[str, str] = {}
        self.rules: list[str] = []

    def value(self, schema: Any, root: Schema) -> str:
        """The rule of values that fit. `root`: what references point into. Raises Unenforceable."""
        known = json.dumps(schema, sort_keys=True) + str(id(root))
        if known not in self._made:
            name = self._made[known] = f"{self._name}_{len(self._made)}"
            found = [
                self._alternative(found, root, f"{name}_a{i}")
                for i, found in enumerate(alternatives(schema, root))
            ]
            if not any(found):
                raise Unenforceable("a schema that allows nothing")
            self.rules.append(f"{name}: {' | '.join(filter(None, found))}")
        return self._made[known]

    def keywords(self, schema: Schema) -> str:
        """An expression of an object's members as keywords of a call. Raises Unenforceable."""
        return self._members(schema, schema, _keyword, lambda names: self._new_key(names, "="))

    def _members(self, schema: Schema, root: Schema, key: Key, new_key: NewKey) -> str:
        """An expression of an object's members.

        They stand in the order of templates. Others come last, if the schema speaks of them or
        of no properties at all.
        """
        named = schema.get("properties") or {}
        required = schema.get("required") or []
        more = schema.get("additionalProperties", not named)
        unknown = [word for word in required if word not in named]
        if unknown:
            raise Unenforceable(f"required {unknown[0]}, which is no property")
        rest = ["", ""]  # of the members still to come: where none has come yet, and behind one
        if more is not False:
            extra = f"{new_key(named)} {self.value(more, root)}"
            rest = [f"({extra} ({COMMA} {extra})*)?", f"({COMMA} {extra})*"]
        for word, inner in reversed(self._in_order(named)):
            one = f"{key(word)} {self.value(inner, root)}"
            left_out = [] if word in required else rest
            rest = [
                self._rule(f"{one} {rest[1]}", *left_out[:1]),
                self._rule(f"{COMMA} {one} {rest[1]}", *left_out[1:]),
            ]
        return rest[0]

    def _in_order(self, named: Schema) -> list[tuple[str, Any]]:
        """Members as templates print them: those of bare keys by the alphabet."""
        members = list(named.items())
        return sorted(members, key=lambda m: m[0].lower()) if self._dialect.bare else members

    def _rule(self, *ways: str) -> str:
        """A rule with a name of its own; a way may be nothing at all."""
        name = f"{self._name}_m{len(self.rules)}"
        self.rules.append(f"{name}: {' | '.join(way or EMPTY for way in ways)}")
        return name

    def _alternative(self, found: Alternative, root: Schema, name: str) -> str:
        """Its expression; "" if it has none."""
        if found.kind == "string":
            return self._string(found, name)
        if found.values is not None:
            return " | ".join(self.spelled(value) for value in found.values)
        if found.kind in _NUMBERS:
            schema = {k: v for k, v in found.schema.items() if k != "type"} | {"type": found.kind}
            schema = {k: v for k, v in schema.items() if k not in SHARED}
            return f"%json {json.dumps(schema)}"
        if found.kind == "array":
            return self._array(found.schema, root)
        if found.kind == "object":
            inner = self._members(found.schema, root, self._key, self._new_member)
            return f'"{{" {inner} "}}"'
        words = {"boolean": (True, False), "null": (None,)}[found.kind]
        return " | ".join(map(self.spelled, words))

    def _array(self, schema: Schema, root: Schema) -> str:
        item = self.value(schema.get("items", True), root)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most is not None and most < max(least, 1):
            if least > most:
                raise Unenforceable("an array with minItems above maxItems")
            return '"[" "]"'
        bound = "" if most is None else most - 1
        if most == 1:
            return f'"[" {item} "]"' if least else f'"[" {item}? "]"'
        items = f"{item} ({COMMA} {item}){{{max(least - 1, 0)},{bound}}}"
        return f'"[" {items} "]"' if least else f'"[" ({items})? "]"'

    def spelled(self, value: Any) -> str:
        """An expression of exactly this value."""
        match value:
            case str():
                return self._exactly(value)
            case dict():
                members = (f"{self._key(k)} {self.spelled(part)}" for k, part in value.items())
                return " ".join(('"{"', f" {COMMA} ".join(members), '"}"'))
            case list():
                items = f" {COMMA} ".join(map(self.spelled, value))
                return " ".join(('"["', items, '"]"'))
        word = repr(value) if self._dialect.python else json.dumps(value)
        return literal(word)

    def _exactly(self, text: str) -> str:
        if self._dialect.python:
            ways = dict.fromkeys((repr(text), json.dumps(text, ensure_ascii=False)))
            return f"({' | '.join(map(literal, ways))})"
        if self._json:
            quoted = json.dumps(text, ensure_ascii=False)
            if any(re.fullmatch(pattern, quoted) for pattern in self._unlike):
                raise Unenforceable(f"{quoted}, which has a marker in it")
            return literal(quoted)
        quote = self._lark.marker(self._dialect.quotes[0])
        return f"{quote} {literal(text)} {quote}" if text else f"{quote} {quote}"

    def _string(self, found: Alternative, name: str) -> str:
        if found.values is not None:
            return " | ".join(map(self._exactly, found.values))
        expression = string_expression(found)
        if self._dialect.python or self._json:
            inside = "" if lengths(found) else (_PLAIN_JSON if self._json else _PLAIN)
            ways = self._quoted(found, expression, name.upper())
            return " | ".join((*ways, *judged(found, inside)))
        quote = self._dialect.quotes[0]
        empty = may_be_empty(found)
        self.rules += self._lark.until(f"{name}_text", [quote], expression, empty=empty)
        return " | ".join((f"{self._lark.marker(quote)} {name}_text", *judged(found)))

    def _quoted(self, found: Alternative, expression: str, name: str) -> list[str]:
        """The terminals of a string in quotes. Where more than its length is said, no escapes."""
        ways, escape = (_INSIDE_JSON, _ESCAPE_JSON) if self._json else (_INSIDE, _ESCAPE)
        times = lengths(found)
        for word, (quote, inside) in ways.items():
            body = f"/({inside}|{escape}){times}/" if times else f"({expression} & /{inside}*/)"
            self._terminal(f"{name}_{word}", f"{literal(quote)} {body} {literal(quote)}")
        return [f"{name}_{word}" for word in ways]

    def _terminal(self, name: str, body: str) -> None:
        unlike = f" & {no_text(self._unlike)}" if self._unlike else ""
        self.rules.append(f"{name}: ({body}){unlike}")

    def _key(self, key: str) -> str:
        if self._dialect.bare and _BARE_KEY.fullmatch(key):
            return literal(f"{key}:")
        return f"{self._exactly(key)} {literal(':' + self._gap)}"

    def _new_member(self, names: Collection[str]) -> str:
        if self._dialect.bare:
            return self._new_key(names, ":", _BARE_KEYS)
        if self._json:
            written = [json.dumps(name, ensure_ascii=False)[1:-1] for name in names]
            return self._new_key(written, ": ", _JSON_KEY, ('"',))
        return self._new_key(names, f":{self._gap}", NEW_KEY, ('"', "'"))

    def _new_key(
        self, names: Collection[str], end: str, keys: str = NEW_KEY, quotes: Collection[str] = ("",)
    ) -> str:
        """A key that is none of `names`, between `quotes`, and `end`."""
        name = f"{self._name}_k{len(self.rules)}".upper()
        known = [letters(name) for name in names]
        other = f"(/{keys}/ & {no_text(known)})" if known else f"/{keys}/"
        ways = [" ".join((literal(quote), other, literal(quote))) for quote in quotes]
        self._terminal(name, " | ".join(ways))
        return f"{name} {literal(end)}"


def _keyword(key: str) -> str:
    if not _KEYWORD.fullmatch(key):
        raise Unenforceable(f"the argument {key}, which is no name in Python")
    return literal(f"{key}=")
