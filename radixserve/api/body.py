"""Request bodies: read within a limit, parsed strictly, every fault named.

Unknown keys are ignored and logged once each, since real clients send many. Known ones that would
change the answer and are not supported are refused by name.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect

from radixserve.api.errors import ApiError

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

MAX_BODY_BYTES = 64 << 20
MAX_LOGGED_KEYS = 1000  # beyond which unknown keys are no longer told apart

# Parameters of OpenAI and of other servers -> the values that ask for nothing. null always is one.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "documents": ([],),
    "dry_multiplier": (0,),
    "echo": (False,),
    "function_call": (),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "lora_path": (),
    "mirostat": (0,),
    "modalities": (["text"],),
    "no_stop_trim": (False,),
    "prompt_logprobs": (),
    "session_params": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_regex": ([], ""),
    "structural_tag": (),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "web_search_options": (),
    "xtc_probability": (0,),
}

_WHERE = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?`?\$\.?(?P<path>.*?)`)?", re.DOTALL)


async def read_body(request: Request) -> bytes:
    """The body of a JSON request. ApiError 413 if it is too long, 415 if it is not JSON."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(415, "the content type must be application/json")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise _too_large()
    except ClientDisconnect as error:
        raise ApiError(400, "the body is incomplete") from error
    return bytes(body)


def _too_large() -> ApiError:
    return ApiError(413, f"the body is longer than {MAX_BODY_BYTES >> 20} MiB")


class BodyParser:
    """Parses the bodies of one server; remembers which unknown keys it has logged."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def parse(self, body: bytes, kind: type[T]) -> T:
        """`body` as a `kind`. ApiError 400 names the field at fault."""
        try:
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            parsed = msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            raise _invalid(error) from error
        except ValueError as error:  # msgspec.DecodeError
            raise ApiError(400, f"the body is not valid JSON: {error}") from error
        except RecursionError as error:
            raise ApiError(400, "the body is nested too deep") from error
        unknown = fields.keys() - {field.encode_name for field in msgspec.structs.fields(kind)}
        self._judge({name: fields[name] for name in unknown})
        return parsed

    def _judge(self, unknown: Mapping[str, msgspec.Raw]) -> None:
        for name, raw in unknown.items():
            if name in UNSUPPORTED:
                value = msgspec.json.decode(raw)
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


def _invalid(error: msgspec.ValidationError) -> ApiError:
    """msgspec says "Expected `int`, got `str` - at `$.n`": the path is the parameter."""
    match = _WHERE.fullmatch(str(error))
    what, path = (match["what"], match["path"]) if match else (str(error), None)
    return ApiError(400, f"{path}: {what}" if path else what, param=path or None)
