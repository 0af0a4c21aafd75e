"""Any body on any route is answered, never with a 5xx and never with anything of Python."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.api.anthropic.fields import MessagesFields, PromptFields
from radixserve.api.body import UNSUPPORTED
from radixserve.api.chat import ChatFields
from radixserve.api.completions import CompletionFields
from radixserve.api.control import AbortFields
from radixserve.api.openapi import document
from radixserve.api.responses.fields import ResponseFields
from radixserve.api.tokenization import DetokenizeFields, TokenizeFields
from tests.api.fakes import Server
from tests.api.sending import CHAT, COMPLETIONS, COUNT, MESSAGES, fault_of

KINDS = {
    CHAT: ChatFields,
    COMPLETIONS: CompletionFields,
    MESSAGES: MessagesFields,
    COUNT: PromptFields,
    "/v1/responses": ResponseFields,
    f"{CHAT}/render": ChatFields,
    f"{COMPLETIONS}/render": CompletionFields,
    "/tokenize": TokenizeFields,
    "/detokenize": DetokenizeFields,
    "/abort_request": AbortFields,
}
PYTHON = re.compile(
    r"Traceback|\.py\b|Error\(|Exception|NoneType|object at 0x|\bself\b|msgspec|<class|codec"
    r"|`(?:str|int|float|bool|dict|list)\b|of type None"
)
SETTINGS = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

TEXT = st.one_of(
    st.text(max_size=8), st.sampled_from(["\x00", "\ud800", "\udfff\ud800", "a" * 999])
)
NUMBER = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**63, -(2**63), 10**30, 1e308, -1e308, 0.5, 1.0]),
    st.floats(),  # NaN and infinities are written as Python writes them
)
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBER, TEXT),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
BLOCK = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "x"]
        )
    },
    optional={
        "text": TEXT,
        "thinking": TEXT,
        "id": TEXT,
        "name": TEXT,
        "input": VALUE,
        "tool_use_id": TEXT,
        "content": st.one_of(TEXT, VALUE, st.lists(st.just({"type": "text", "text": "x"}))),
    },
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "developer", "x", 1])},
    optional={
        "content": st.one_of(
            TEXT,
            VALUE,
            st.lists(st.fixed_dictionaries({"type": TEXT})),
            st.lists(BLOCK, max_size=3),
        ),
        "tool_calls": st.one_of(
            VALUE,
            st.lists(
                st.fixed_dictionaries({"function": st.dictionaries(TEXT, VALUE, max_size=2)}),
                max_size=2,
            ),
        ),
        "reasoning_content": VALUE,
    },
)
ITEM = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["message", "function_call", "function_call_output", "reasoning", "item_reference", 1]
        ),
        "role": st.sampled_from(["user", "assistant", "system", "developer", "x", 1]),
        "content": st.one_of(
            TEXT, VALUE, st.lists(st.fixed_dictionaries({"type": TEXT, "text": TEXT}), max_size=2)
        ),
        **dict.fromkeys(
            ["id", "call_id", "name", "arguments", "output", "summary", "namespace"],
            st.one_of(TEXT, VALUE),
        ),
    },
)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
RIGHT: dict[str, st.SearchStrategy[Any]] = {
    "messages": st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": WORDS}),
        min_size=1,
        max_size=3,
    ),
    "prompt": st.one_of(WORDS, st.lists(st.integers(0, 409), min_size=1, max_size=5)),
    "input": st.one_of(
        WORDS,
        st.lists(
            st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": WORDS}),
            min_size=1,
            max_size=3,
        ),
    ),
    "tokens": st.lists(st.integers(0, 409), max_size=5),
    "tools": st.lists(
        st.fixed_dictionaries({"type": st.just("function"), "function": st.just({"name": "f"})}),
        max_size=2,
    ),
    "request_id": WORDS,
    "model": st.just("tiny"),
    "stream": st.booleans(),
    "n": st.integers(1, 3),
    "stop": WORDS,
    "stop_sequences": st.lists(WORDS, max_size=2),
    "system": st.one_of(WORDS, st.lists(BLOCK, max_size=2)),
    "thinking": st.sampled_from([{"type": "adaptive"}, {"type": "disabled"}]),
    "tool_choice": st.sampled_from(["auto", "none"]),
    "temperature": st.floats(0, 2),
    "skip_special_tokens": st.booleans(),
    "truncate_prompt_tokens": st.integers(1, 9),
    "echo": st.booleans(),
    "logprob_start_len": st.integers(0, 9),
    "allowed_token_ids": st.lists(st.integers(0, 409), min_size=1, max_size=3),
}
NEEDED = ("messages", "prompt", "input", "tokens", "request_id")


@st.composite
def bodies(draw: st.DrawFn, kind: type[msgspec.Struct]) -> bytes:
    """JSON that is near to what a route takes, with faults in some fields."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    chosen = [n for n in names if n in RIGHT and (n in NEEDED or draw(st.booleans()))]
    if kind is TokenizeFields:
        chosen.remove(draw(st.sampled_from(["messages", "prompt"])))
    if kind is ResponseFields:
        chosen.remove("prompt")  # is of another kind there, and refused
    fields = {name: draw(RIGHT[name]) for name in chosen}
    if draw(st.booleans()):
        for name in draw(st.lists(st.sampled_from([*names, *UNSUPPORTED]), max_size=3)):
            fields[name] = draw(st.one_of(VALUE, NUMBER))
        fields[draw(TEXT)] = draw(VALUE)
        if "messages" in fields and draw(st.booleans()):
            fields["messages"] = draw(st.lists(MESSAGE, max_size=3))
        if "input" in fields and draw(st.booleans()):
            fields["input"] = draw(st.lists(ITEM, max_size=3))
    fields.setdefault("max_tokens", 2)
    text = json.dumps(fields, ensure_ascii=draw(st.booleans()))
    return text.encode("utf-8", "surrogatepass")


@st.composite
def torn(draw: st.DrawFn, kind: type[msgspec.Struct]) -> bytes:
    """The same, cut, doubled or with bytes changed."""
    body = bytearray(draw(bodies(kind)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                body[at] = draw(st.integers(0, 255))
            case 1:
                del body[at:]
                body += b" "
            case 2:
                body[at:at] = body[: draw(st.integers(0, 20))]
            case _:
                body[at:at] = draw(st.sampled_from([b"[" * 2000, b'{"a":' * 2000, b"9" * 5000]))
    return bytes(body)


TYPES = st.sampled_from(
    ["application/json"] * 8
    + ["application/json; charset=latin-1", "text/plain", "multipart/form-data", "", "a/b+json"]
)


def judge(got: httpx.Response) -> None:
    assert got.status_code < 500, got.text
    assert not PYTHON.search(got.text), got.text
    if got.status_code >= 400:
        error = fault_of(got.request.url.path, got)
        json.dumps(error, ensure_ascii=False).encode()


@pytest.fixture(scope="module")
def server(folder: Path) -> Server:
    return Server(folder)


def send(server: Server, route: str, body: bytes, kind: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with server.client() as client:
            headers = {"content-type": kind}
            return await client.post(route, content=body, headers=headers, timeout=20)

    return asyncio.run(ask())


def test_all_routes_with_a_body_are_fuzzed(server: Server) -> None:
    takers = {
        path
        for path, operations in document(server.app, strict=False)["paths"].items()
        if "requestBody" in operations.get("post", {})
    }
    assert takers == KINDS.keys()


@pytest.mark.parametrize("route", KINDS)
def test_no_body_breaks_a_route(server: Server, route: str) -> None:
    seen: set[int] = set()

    @SETTINGS
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        body = data.draw(st.one_of(bodies(KINDS[route]), torn(KINDS[route])))
        got = send(server, route, body, data.draw(TYPES))
        judge(got)
        seen.add(got.status_code)

    run()
    assert seen >= {200, 400, 415}, "what is drawn is neither all right nor all wrong"


@SETTINGS
@given(
    path=st.text(max_size=20),
    prefix=st.sampled_from(["/", "/v1/", "/v1/models/"]),
    method=st.sampled_from(["GET", "POST", "PUT", "OPTIONS", "X"]),
)
def test_no_path_breaks_the_server(server: Server, path: str, prefix: str, method: str) -> None:
    async def ask() -> httpx.Response:
        async with server.client() as client:
            return await client.request(method, prefix + quote(path, errors="replace"))

    judge(asyncio.run(ask()))
