"""A digest of a conversation up to each of its messages, the same however its client spells it."""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from radixserve.parsing.calls import Call, call_key

SIZE = 16  # bytes of a digest


def digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=SIZE).digest()


def digests(text: str, ends: Iterable[int]) -> dict[int, bytes]:
    """Of the text up to each of `ends`, which is looked at once."""
    found, hashed, at = {}, blake2b(digest_size=SIZE), 0
    for end in sorted(ends):
        hashed.update(text[at:end].encode(errors="surrogatepass"))
        found[end], at = hashed.digest(), end
    return found


def first_key(*terms: object) -> bytes:
    """Of a conversation without a message: all else that its prompt depends on, as JSON has it."""
    return digest(json.dumps(terms, ensure_ascii=False, default=str))


def message_keys(first: bytes, messages: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Key i stands for messages[: i + 1]. They are as templates take them.

    Ids of calls do not matter, nor does, of an assistant's message, the whitespace around its
    content, how arguments are written, and its reasoning.
    """
    keys, key = [], first
    for message in messages:
        key = next_key(key, message)
        keys.append(key)
    return keys


def next_key(before: bytes, message: Mapping[str, Any]) -> bytes:
    parts: list[Any] = [before.hex(), message["role"], message["content"], message.get("name")]
    if message["role"] == "assistant":
        calls = [_call(call["function"]) for call in message.get("tool_calls") or ()]
        parts = [*parts[:2], message["content"].strip(), calls]
    return first_key(*parts)


def _call(function: Mapping[str, Any]) -> str:
    key = call_key(Call(function["name"], _mapping_or_text(function["arguments"])))
    return secrets.token_hex(SIZE) if key is None else key  # such a call is like no other


def _mapping_or_text(arguments: object) -> str | Mapping[str, Any]:
    return arguments if isinstance(arguments, str | Mapping) else json.dumps(arguments)
