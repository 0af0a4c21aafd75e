"""What an answer must fit, as clients ask for it, made one grammar in llguidance's form.

Compiled once to be judged (`judge.py`), so that a wrong grammar is a 400 before anything is
computed; the worker compiles it again where its masks are needed. What cannot be honoured fails: a
schema with parts that llguidance does not know is refused, never loosened.
"""

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from llguidance import LLMatcher
from msgspec import Struct

from radixserve.api.errors import ApiError
from radixserve.tokenizer.invalid import shown

Judge: TypeAlias = Callable[[str], str]  # what is wrong with a grammar; "" if nothing is

MAX_GRAMMAR = 1 << 20  # characters
MAX_CHOICES = 1000
# Compact JSON: a grammar that allows any white space lets a small model write nothing else.
JSON_FORM: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
JSON_FORMATS = ("json_object", "json_schema")  # formats of a text; the answer may be calls instead
ANY_OBJECT: dict[str, Any] = {"type": "object"}


class StructuredOutputs(Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's field of this name; at most one of them is given."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class GrammarFields(Struct, frozen=True, kw_only=True):
    """The names under which OpenAI, vLLM, SGLang and llama.cpp take what an answer must fit."""

    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None


def make_grammar(fields: GrammarFields, judge: Judge) -> str:
    """The grammar that was asked for, "" if none was. Slow for large ones: call it in a thread.

    Raises ApiError 400 that names the field.
    """
    asked = {name: made for name, made in _asked(fields).items() if made is not None}
    if not asked:
        return ""
    if len(asked) > 1:
        names = " and ".join(asked)
        raise ApiError(400, f"{names} exclude each other", param=list(asked)[1])
    ((param, (kind, value)),) = asked.items()
    return judged(_grammar_text(kind, value, param), param, judge)


def judged(text: str, param: str, judge: Judge) -> str:
    """`text` if it is a grammar. ApiError 400 that names `param` if not."""
    if len(text) > MAX_GRAMMAR:
        raise ApiError(400, f"{param}: longer than {MAX_GRAMMAR} characters", param=param)
    if wrong := judge(text):
        raise ApiError(400, f"{param}: {_first_lines(wrong)}", param=param, code="invalid_grammar")
    return text


def json_grammar(schema: dict[str, Any], param: str) -> str:
    """The grammar of JSON texts that fit a schema. ApiError 400 that names `param`."""
    try:
        text: str = LLMatcher.grammar_from_json_schema(schema, defaults=JSON_FORM)
    except (ValueError, RecursionError) as error:
        wrong = "it has numbers beyond 64 bits, or is nested too deep"
        raise ApiError(400, f"{param}: {wrong}", param=param, code="invalid_grammar") from error
    return text


def either(answer: str, calls: str) -> str:
    """The grammar of what fits one of two, each in Lark or one grammar in llguidance's own form."""
    return msgspec.json.encode(
        {
            "grammars": [
                {"lark_grammar": "start: @answer | @calls"},
                _part(answer) | {"name": "answer"},
                _part(calls) | {"name": "calls"},
            ]
        }
    ).decode()


def _part(text: str) -> dict[str, Any]:
    if not text.startswith("{"):
        return {"lark_grammar": text}
    (part,) = msgspec.json.decode(text, type=dict[str, Any])["grammars"]
    return dict(part)


def _asked(fields: GrammarFields) -> dict[str, tuple[str, Any] | None]:
    """Field -> kind and value, None where nothing is asked."""
    given = fields.structured_outputs or StructuredOutputs()
    named: dict[str, tuple[str, Any]] = {
        "structured_outputs.json": ("json", given.json),
        "structured_outputs.json_object": ("json", ANY_OBJECT if given.json_object else None),
        "structured_outputs.regex": ("regex", given.regex),
        "structured_outputs.choice": ("choice", given.choice),
        "structured_outputs.grammar": ("lark", given.grammar),
        "guided_json": ("json", fields.guided_json),
        "guided_regex": ("regex", fields.guided_regex),
        "guided_choice": ("choice", fields.guided_choice),
        "guided_grammar": ("lark", fields.guided_grammar),
        "json_schema": ("json", fields.json_schema),
        "regex": ("regex", fields.regex),
        "ebnf": ("lark", fields.ebnf or None),
        "grammar": ("lark", fields.grammar or None),
    }
    asked: dict[str, tuple[str, Any] | None] = {
        name: pair if pair[1] is not None else None for name, pair in named.items()
    }
    asked["response_format"] = _response_format(fields.response_format or {"type": "text"})
    return asked


def _response_format(wanted: dict[str, Any]) -> tuple[str, Any] | None:
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = wanted.get("schema")  # llama.cpp's
        return "json", ANY_OBJECT if schema is None else schema
    if kind == "json_schema":
        named = wanted.get("json_schema")
        schema = named.get("schema") if isinstance(named, dict) else None
        if schema is None:
            raise ApiError(
                400,
                "response_format.json_schema.schema is missing",
                param="response_format.json_schema",
            )
        return "json", schema
    if kind == "regex" and isinstance(wanted.get("pattern"), str):
        return "regex", wanted["pattern"]
    if kind == "grammar" and isinstance(wanted.get("grammar"), str):
        return "lark", wanted["grammar"]
    raise ApiError(
        400,
        f"response_format: the type {shown(kind)} is not supported by this server",
        param="response_format",
        code="unsupported_parameter",
    )


def _grammar_text(kind: str, value: Any, param: str) -> str:
    if kind == "json":
        return json_grammar(_schema(value, param), param)
    if kind == "regex":
        text: str = LLMatcher.grammar_from_regex(value)
        return text
    if kind == "choice":
        if not 1 <= len(value) <= MAX_CHOICES:
            raise ApiError(400, f"{param}: 1 to {MAX_CHOICES} strings", param=param)
        choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in value)
        return f"start: {choices}"
    return value if isinstance(value, str) else ""


def _schema(value: Any, param: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"{param}: not valid JSON", param=param) from error
    if value is True:
        return {}
    if not isinstance(value, dict):
        raise ApiError(400, f"{param}: a JSON schema is an object", param=param)
    return value


def _first_lines(message: str) -> str:
    return " ".join(message.split())[:300]
