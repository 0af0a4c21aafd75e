"""The tools of a request, as far as they tell what a model's raw text means.

Formats that write values without quotes leave it to the tool's schema whether 3 is a number.
"""

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from radixserve.parsing.values import PYTHON, to_json

_MAX_NESTING = 16  # schemas within schemas that are looked into
_ALIASES = {
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "str": "string",
    "dict": "object",
    "list": "array",
    "tuple": "array",
}  # not JSON schema, but what people write
KINDS = ("string", "integer", "number", "boolean", "object", "array", "null")
_BY_TYPE = {
    bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null",
    dict: "object", list: "array",
}  # fmt: skip


class Tool(Struct, frozen=True):
    """`parameters`: the JSON schema of its arguments, an object's. `strict`: they must fit it."""

    name: str
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    def properties(self) -> Mapping[str, Any]:
        found = (self.parameters or {}).get("properties")
        return found if isinstance(found, Mapping) else {}

    def kinds(self, key: str) -> frozenset[str]:
        """The JSON types that the argument `key` may have; empty if the schema does not say."""
        schema = self.properties().get(key)
        return _kinds(schema, self.parameters or {}, 0)


def schema_of(function: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema of a function as OpenAI has it, if it is one."""
    schema = function.get("parameters")
    return schema if isinstance(schema, Mapping) else None


def _kinds(schema: Any, root: Mapping[str, Any], nesting: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or nesting > _MAX_NESTING:
        return frozenset()
    found = _said(schema, root, nesting)
    return found | {"null"} if found and schema.get("nullable") is True else found


def _said(schema: Mapping[str, Any], root: Mapping[str, Any], nesting: int) -> frozenset[str]:
    """The same without the word that OpenAPI 3.0 has for null."""
    if isinstance(schema.get("$ref"), str):
        return _kinds(target(schema["$ref"], root), root, nesting + 1)
    named = schema.get("type")
    if isinstance(named, str | list):
        listed = [named] if isinstance(named, str) else named
        return frozenset(_ALIASES.get(kind, kind) for kind in listed if isinstance(kind, str))
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), list):
            parts = [_kinds(part, root, nesting + 1) for part in schema[word]]
            return frozenset().union(*parts)
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    if "const" in schema:
        values = [schema["const"]]
    if values:
        return frozenset(kind_of(value) for value in values)
    return frozenset(("object",)) if "properties" in schema else frozenset()


def kind_of(value: Any) -> str:
    """The JSON type of a value that came from JSON."""
    return _BY_TYPE[type(value)]


def target(ref: str, root: Mapping[str, Any]) -> Any:
    """The schema that a reference within the same document names; None if there is none."""
    found: Any = root
    for step in ref.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def typed(text: str, kinds: frozenset[str]) -> str:
    """A raw value as JSON: of a kind that the schema allows if it can be read so, else a string.

    Where a string is allowed too, another kind wins: the model had no way to tell. Without kinds
    the text is taken for what it looks like.
    """
    value = text.strip()
    allowed = kinds or frozenset(KINDS)
    if "null" in allowed and value.lower() in ("null", "none"):
        return "null"
    if "boolean" in allowed and value.lower() in ("true", "false"):
        return value.lower()
    read = _read(value) if allowed & {"integer", "number", "object", "array"} else None
    if read is not None and _is_kind(read, allowed):
        return read
    return json.dumps(text, ensure_ascii=False)


def _read(value: str) -> str | None:
    """JSON, or (models forget) a Python literal."""
    read = to_json(value)
    return to_json(value, PYTHON) if read is None and value[:1] in ("{", "[", "(") else read


def _is_kind(read: str, allowed: frozenset[str]) -> bool:
    first = read[0]
    if first in "{[":
        return ("object" if first == "{" else "array") in allowed
    if first in '"tfn':
        return False
    return "number" in allowed or ("integer" in allowed and _is_whole(read))


def _is_whole(number: str) -> bool:
    return number.lstrip("-").isdigit() or float(number).is_integer()
