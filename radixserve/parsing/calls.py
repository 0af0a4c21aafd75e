"""Calls of earlier turns as clients send them back: spaced anew, as text or as objects.

For templates, which want objects, and for telling whether a call is one that was generated here.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from radixserve.parsing.values import MAX_DEPTH, PYTHON, to_json


class Call(Struct, frozen=True):
    """`arguments`: JSON text, as chat completions have it, or the object itself."""

    name: str
    arguments: str | Mapping[str, Any]


def arguments_object(arguments: str | Mapping[str, Any]) -> dict[str, Any] | None:
    """What a template is to print; None if the text holds no object.

    Text is read as strict JSON; else with what models get wrong put right (line breaks in strings,
    Python's literals and quotes); else as a string that holds such text. No text is no arguments.
    """
    if not isinstance(arguments, str):
        return dict(arguments)
    text = arguments.strip() or "{}"
    for _ in range(2):
        written = to_json(text) or to_json(text, PYTHON)
        try:
            value = json.loads(written) if written else None
        except ValueError:  # a number with too many digits for Python
            return None
        if not isinstance(value, str):
            return value if isinstance(value, dict) else None
        text = value
    return None


def call_key(call: Call) -> str | None:
    """Equal for two calls exactly if they call the same with equal arguments.

    Order of keys, spacing and escapes do not matter, nor does 1.0 for 1; 1, "1" and true differ.
    Arguments that are no object are compared as text. None for objects that are not JSON, or nested
    too deep: such a call is like no other.
    """
    value = arguments_object(call.arguments)
    try:
        plain = call.arguments if value is None else _plain(value, 0)
        return json.dumps([call.name, value is None, plain], sort_keys=True, ensure_ascii=False)
    except (TypeError, ValueError):
        return None


def same_call(one: Call, other: Call) -> bool:
    key = call_key(one)
    return key is not None and key == call_key(other)


def _plain(value: Any, depth: int) -> Any:
    """Whole numbers as integers, everywhere in `value`."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value.is_integer() else value
    if isinstance(value, Mapping):
        return {str(key): _plain(part, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, depth + 1) for part in value]
    return value
