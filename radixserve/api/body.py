"""Request bodies: read within a limit, parsed strictly, every fault named.

Unknown keys are ignored and logged once each, since real clients send many, or refused where the
operator wants it so. Known ones that would change the answer and are not supported are refused by
name. 1.0 is taken where 1 is.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect

from radixserve.api.errors import ApiError

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

MAX_LOGGED_KEYS = 1000  # beyond which unknown keys are no longer told apart

# Parameters of OpenAI and of other servers -> the values that ask for nothing. null always is one.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "chat_template": (),
    "compaction": (),
    "conversation": (),
    "custom_logit_processor": (),
    "documents": ([],),
    "dry_multiplier": (0,),
    "echo": (False,),
    "function_call": (),
    "functions": ([],),
    "input": (),
    "input_ids": (),
    "instructions": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "lora_path": (),
    "mirostat": (0,),
    "modalities": (["text"],),
    "no_repeat_ngram_size": (0,),
    "previous_response_id": (),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repeat_penalty": (1,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "session_params": (),
    "spaces_between_special_tokens": (True,),
    "stop_regex": ([], ""),
    "structural_tag": (),
    "suffix": ("",),
    "system": (),
    "text": ({"format": {"type": "text"}},),
    "thinking_token_budget": (),
    "thread": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "web_search_options": (),
    "xtc_probability": (0,),
}

# Parameters, also of parts of a body, that ask for nothing which an answer here depends on.
WITHOUT_EFFECT = frozenset(
    (
        "client_metadata",
        "container",
        "context_management",
        "display",
        "generate_summary",
        "include",
        "include_obfuscation",
        "include_reasoning",
        "inference_geo",
        "metadata",
        "output_config",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "separate_reasoning",
        "service_tier",
        "store",
        "stream_reasoning",
        "thinking",
        "verbosity",
    )
)

_TYPES = {"bool": "boolean", "float": "number", "int": "integer", "str": "string"}  # JSON's names
_NAMED_TYPES = re.compile(r"`[^`]*`")
_WHERE = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?`?\$\.?(?P<path>.*?)`)?", re.DOTALL)


async def _read(request: Request, limit: int) -> bytes:
    """The body of a request. ApiError 413 if it is too long."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
    except ClientDisconnect as error:
        raise ApiError(400, "the body is incomplete") from error
    return bytes(body)


def _check_type(request: Request) -> None:
    kind, *options = request.headers.get("content-type", "application/json").lower().split(";")
    kind = kind.strip()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(415, "the content type must be application/json")
    for option in options:
        name, _, value = option.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in ("utf-8", "utf8", "us-ascii"):
            raise ApiError(415, "the charset must be utf-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "the content encoding must be identity")


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is longer than {limit} bytes")


class BodyParser:
    """Reads the bodies of one server; remembers which unknown keys it has logged."""

    def __init__(self, max_bytes: int, *, strict: bool) -> None:
        """`strict`: unknown keys are refused."""
        self._max_bytes = max_bytes
        self._strict = strict
        self._logged: set[str] = set()

    async def read(self, request: Request, kind: type[T]) -> T:
        """The body of `request` as a `kind`. ApiError 415 if it is not JSON, 413, 400."""
        _check_type(request)
        return self.parse(await _read(request, self._max_bytes), kind)

    async def skip(self, request: Request) -> None:
        """Read a body that means nothing, whatever it is. ApiError 413 if it is too long."""
        await _read(request, self._max_bytes)

    def parse(self, body: bytes, kind: type[T]) -> T:
        """`body` as a `kind`. ApiError 400 names the field at fault."""
        try:
            fields = _decode(body, kind)
            _refuse_repeated_keys(body)
            parsed = msgspec.convert(fields, kind)
        except msgspec.ValidationError as error:
            raise named_fault(error) from error
        except ValueError as error:  # msgspec.DecodeError
            raise ApiError(400, f"the body is not valid JSON: {error}") from error
        except RecursionError as error:
            raise ApiError(400, "the body is nested too deep") from error
        unknown = fields.keys() - set(kind.__struct_encode_fields__)
        self._judge({name: fields[name] for name in unknown})
        if self._strict and (path := next(_unknown(parsed, fields), None)):
            path = path[:100]
            raise ApiError(400, f"{path} is not known", param=path, code="unknown_parameter")
        return parsed

    def _judge(self, unknown: Mapping[str, Any]) -> None:
        for name, value in unknown.items():
            if name in UNSUPPORTED:
                if value is not None and value not in UNSUPPORTED[name]:
                    raise ApiError(
                        400,
                        f"{name} is not supported by this server",
                        param=name,
                        code="unsupported_parameter",
                    )
            elif name not in self._logged and len(self._logged) < MAX_LOGGED_KEYS:
                self._logged.add(name)
                log.info("ignoring the unknown parameter %.100r (said once)", name)


def _decode(body: bytes, kind: type[T]) -> dict[str, Any]:
    """The keys and values of an object, all of them valid; whole floats as integers."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.ValidationError:
        msgspec.json.decode(body, type=kind)  # knows better where the fault is
        raise
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in fields.items()
    }


def _unknown(value: object, given: object, where: str = "") -> Iterator[str]:
    """The paths of the keys of `given` that the structs in `value`, read from it, do not know."""
    if isinstance(value, list) and isinstance(given, list):
        for i, (one, said) in enumerate(zip(value, given, strict=True)):
            yield from _unknown(one, said, f"{where}[{i}]")
    elif isinstance(value, msgspec.Struct) and isinstance(given, dict):
        known = dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
        for name, said in given.items():
            path = f"{where}.{name}" if where else name
            if name in known:
                yield from _unknown(getattr(value, known[name]), said, path)
            elif name not in WITHOUT_EFFECT and (where or name not in UNSUPPORTED):
                yield path


def _unique(pairs: list[tuple[str, Any]]) -> None:
    """Readers differ in which of two equal keys they take: a router might judge another than we."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ApiError(400, f"the key {name[:100]} comes twice in an object", param=name[:100])
        seen.add(name)


_scanner = json.JSONDecoder(object_pairs_hook=_unique, parse_int=bool, parse_float=bool)


def _refuse_repeated_keys(body: bytes) -> None:
    """`body` is valid JSON. Raises ApiError."""
    _scanner.decode(body.decode())


def named_fault(error: msgspec.ValidationError, within: str = "") -> ApiError:
    """msgspec says "Expected `int`, got `str` - at `$.n`": the path is the parameter.

    Types go by JSON's names. `within`: the path to what was read.
    """
    match = _WHERE.fullmatch(str(error))
    what, path = (match["what"], match["path"]) if match else (str(error), None)
    what = _NAMED_TYPES.sub(lambda types: re.sub(r"\w+", _json_name, types[0]), what)
    path = ".".join(filter(None, (within, path)))
    return ApiError(400, f"{path}: {what}" if path else what, param=path or None)


def _json_name(word: re.Match[str]) -> str:
    return _TYPES.get(word[0], word[0])
