"""What a JSON schema allows, as far as it must be known to write values that are not JSON.

Values in a model's own spelling cannot be left to llguidance, which knows schemas for JSON only. A
keyword that is not understood is refused, never passed over.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from radixserve.parsing.grammars.lark import CHAR, one_of
from radixserve.parsing.tools import KINDS, Tool, kind_of, target

Schema: TypeAlias = Mapping[str, Any]

# How llguidance writes JSON: a grammar with any white space lets a small model write nothing else.
COMPACT: Schema = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_NESTING = 64  # schemas within schemas
ANY_OBJECT: Schema = {"type": "object"}
SHARED = ("$defs", "definitions")  # what "$ref" names from the root of a schema
_NOTES = frozenset(("title", "description", "default", "examples", "deprecated", "readOnly"))
_SILENT = _NOTES | frozenset(
    ("writeOnly", "$comment", "$schema", "$id", "$anchor", "x-guidance", *SHARED)
)
_VALUES = frozenset(("type", "enum", "const"))
_NUMBERS = frozenset(
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format")
)
_KNOWN = {
    "string": frozenset(("pattern", "minLength", "maxLength", "format")),
    "number": _NUMBERS,
    "integer": _NUMBERS,
    "array": frozenset(("items", "minItems", "maxItems")),
    "object": frozenset(("properties", "required", "additionalProperties")),
}
_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "email": rf"[A-Za-z0-9._%+-]{{1,64}}@{_LABEL}(\.{_LABEL}){{1,8}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,8}}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:[!#-;=?-\[\]_a-z~]+",
    "uuid": r"[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
}


class Unenforceable(ValueError):
    """The schema says something that cannot be enforced in the model's format."""


class Alternative(Struct, frozen=True):
    """Values of one JSON type. `values`: the only ones, if not None."""

    kind: str
    schema: Schema
    values: tuple[Any, ...] | None = None

    @property
    def free(self) -> bool:
        """Nothing is said but the type."""
        return self.values is None and not (self.schema.keys() & _KNOWN.get(self.kind, ()))


def alternatives(schema: Any, root: Schema, nesting: int = 0) -> Iterator[Alternative]:
    """What `schema` allows, by type. `root`: what its references point into.

    Raises Unenforceable.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping) or nesting > MAX_NESTING:
        raise Unenforceable("a schema that allows nothing, or too many within another")
    inner = _inner(schema, root)
    if inner is not None:
        rest = {
            key: v for key, v in schema.items() if key not in ("$ref", "anyOf", "oneOf", "allOf")
        }
        parts = [list(alternatives(_merged(rest, part), root, nesting + 1)) for part in inner]
        if isinstance(schema.get("oneOf"), list) and _overlap(parts):
            raise Unenforceable("oneOf of schemas that a value may fit at the same time")
        yield from (found for part in parts for found in part)
        return
    kinds = _kinds(schema)
    if schema.get("nullable") is True and "null" not in kinds:  # as OpenAPI 3.0 has it
        kinds = [*kinds, "null"]
    for kind in kinds:
        yield _alternative(kind, schema)


def _merged(rest: Schema, part: Any) -> Any:
    """A schema with what stands beside its place in another. Raises Unenforceable."""
    said = rest.keys() - _SILENT
    if not said:
        return part
    same = isinstance(part, Mapping) and part.get("type") == rest.get("type")
    if not isinstance(part, Mapping) or said & part.keys() - ({"type"} if same else set()):
        raise Unenforceable(f"{', '.join(sorted(said))} beside others")
    return {**rest, **part}


def _overlap(parts: list[list[Alternative]]) -> bool:
    """Whether a value may fit more than one of `parts`, as far as types and values tell."""
    for i, part in enumerate(parts):
        for one in part:
            others = [other for more in parts[i + 1 :] for other in more]
            if any(_meet(one, other) for other in others):
                return True
    return False


def _meet(one: Alternative, other: Alternative) -> bool:
    if one.values is not None and other.values is not None:
        return any(value in other.values for value in one.values)
    same = one.kind == other.kind or {one.kind, other.kind} == {"number", "integer"}
    return same and () not in (one.values, other.values)


def _inner(schema: Schema, root: Schema) -> list[Any] | None:
    """The schemas of which a value must fit one, where the schema itself only names them."""
    if isinstance(schema.get("$ref"), str):
        found = target(schema["$ref"], root)
        if found is None:
            raise Unenforceable(f"$ref {schema['$ref']} points at nothing")
        return [found]
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return list(schema[word])
    if isinstance(schema.get("allOf"), list):
        if len(schema["allOf"]) != 1:
            raise Unenforceable("allOf of several schemas")
        return list(schema["allOf"])
    return None


def _kinds(schema: Schema) -> list[str]:
    named = schema.get("type")
    if isinstance(named, str):
        named = [named]
    if isinstance(named, list):
        unknown = [kind for kind in named if kind not in KINDS]
        if unknown:
            raise Unenforceable(f"type {unknown[0]}")
        return named
    values = _values(schema)
    if values is not None:
        return list(dict.fromkeys(map(kind_of, values)))
    if "properties" in schema:
        return ["object"]
    return [kind for kind in KINDS if kind != "integer"]


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        listed = schema.get("enum", [schema["const"]])
        return [schema["const"]] if schema["const"] in listed else []
    return list(schema["enum"]) if isinstance(schema.get("enum"), list) else None


def _alternative(kind: str, schema: Schema) -> Alternative:
    values = _values(schema)
    if values is not None:
        bounds = schema.keys() - _SILENT - _VALUES - {"nullable", "format"}
        if bounds:
            raise Unenforceable(f"{sorted(bounds)[0]} beside values")
        kinds = (kind, "integer") if kind == "number" else (kind,)
        return Alternative(kind, schema, tuple(v for v in values if kind_of(v) in kinds))
    applies = {word for words in _KNOWN.values() for word in words}
    unknown = schema.keys() - _SILENT - _VALUES - applies - {"nullable"}
    if unknown:
        raise Unenforceable(f"the keyword {sorted(unknown)[0]}")
    return Alternative(kind, schema)


def string_expression(alternative: Alternative) -> str:
    """A terminal's expression of the texts of a string; "" if any will do. Raises Unenforceable."""
    schema = alternative.schema
    if alternative.values is not None:
        return f"/{one_of([str(value) for value in alternative.values])}/"
    parts = []
    if schema.keys() & {"minLength", "maxLength"}:
        parts.append(f"/{CHAR}{_times(schema)}/")
    if "pattern" in schema:
        parts.append(f"/{_searched(schema['pattern'])}/")
    if "format" in schema:
        if schema["format"] not in _FORMATS:
            raise Unenforceable(f"the format {schema['format']}")
        parts.append(f"/{_FORMATS[schema['format']]}/")
    return " & ".join(parts)


def lengths(alternative: Alternative) -> str:
    """How often there is a character, as expressions say it; "" if more is said of the string."""
    schema = alternative.schema
    return "" if schema.keys() & {"pattern", "format"} else _times(schema)


def _times(schema: Schema) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if most != "" and least > most:
        raise Unenforceable("a string with minLength above maxLength")
    return f"{{{least},{most}}}" if least or most != "" else "*"


def judged(alternative: Alternative, inside: str = "") -> list[str]:
    """Expressions that no text fits, where what is said of a string may exclude all of them.

    llguidance refuses a schema that nothing fits, but would compile terminals that are empty.
    `inside`: an expression of the characters that a string can have, if not of all.
    """
    said = alternative.schema.keys() & _KNOWN["string"]
    if alternative.values is not None or not said or (len(said) == 1 and not inside):
        return []
    schema = {word: alternative.schema[word] for word in said}
    schema |= {"allOf": [{"pattern": f"^{inside}*$"}]} if inside else {}
    return [f"NEVER %json {json.dumps({'type': 'string', **schema})}"]


def may_be_empty(alternative: Alternative) -> bool:
    """Whether a string without characters fits, unless a pattern has something against it."""
    schema = alternative.schema
    if alternative.values is not None:
        return "" in alternative.values
    return not (schema.get("minLength") or "format" in schema or "pattern" in schema)


def _searched(pattern: Any) -> str:
    """A pattern of a schema, which may fit anywhere in a text, as one of whole texts."""
    if not isinstance(pattern, str):
        raise Unenforceable("a pattern that is no text")
    begins = pattern.startswith("^")
    ends = pattern.endswith("$") and not pattern.endswith("\\$")
    body = pattern[begins : len(pattern) - ends]
    if (begins or ends) and "|" in body:
        body_depth = 0
        for char in body:
            body_depth += (char == "(") - (char == ")")
            if char == "|" and body_depth == 0:
                raise Unenforceable(f"the pattern {json.dumps(pattern)}")
    escaped = body.replace("\\/", "/").replace("/", "\\/")
    return f"{'' if begins else CHAR + '*'}({escaped}){'' if ends else CHAR + '*'}"


def parameters(tool: Tool) -> Schema:
    """The schema of a tool's arguments; without one it takes none."""
    if tool.parameters is not None:
        return tool.parameters
    return {"type": "object", "properties": {}, "additionalProperties": False}
