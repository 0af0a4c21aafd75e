"""What clients get wrong is answered with 4xx in OpenAI's shape, and harms nobody."""

import gzip
import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from radixserve.api import body as body_module
from radixserve.api.chat import ChatFields
from radixserve.api.completions import CompletionFields
from tests.api.fakes import Server
from tests.api.sending import CHAT, COMPLETIONS, answer, body, post

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("route", [CHAT, COMPLETIONS])


def check(response: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"] and error["type"] == "invalid_request_error"
    assert "Traceback" not in response.text and "Error(" not in response.text
    if param is not None:
        assert error["param"] == param, error
    return error


COMMON: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_completion_tokens": True}, "max_completion_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": -1}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": 2, "best_of": 3}, "best_of"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", 7]}, "stop[1]"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [410]}, "stop_token_ids"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"10000000": 5}}, "logit_bias"),
    ({"logit_bias": {"AI": -100}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 1e6}}, "logit_bias"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    ({"seed": "x"}, "seed"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
    ({"priority": 2**40}, "priority"),
    ({"suffix": "x"}, "suffix"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"guided_json": 3}, "guided_json"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"skip_special_tokens": "no"}, "skip_special_tokens"),
    ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
    ({"bad_words": "x"}, "bad_words"),
    ({"bad_words": [" "]}, "bad_words"),
    ({"bad_words": ["a longer phrase"]}, "bad_words"),
    ({"bad_words": ["x"] * 257}, "bad_words"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [1, 410]}, "allowed_token_ids"),
    ({"allowed_token_ids": [-1, 1]}, "allowed_token_ids"),
    ({"allowed_token_ids": ["1"]}, "allowed_token_ids[0]"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"add_special_tokens": "yes"}, "add_special_tokens"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"instructions": "be brief"}, "instructions"),
    ({"n": 1.5}, "n"),
    ({"top_k": 2e9}, "top_k"),
    ({"temperature": 1e300}, "temperature"),
]


@pytest.mark.parametrize(("fields", "param"), COMMON)
@both
async def test_fields_out_of_range(
    folder: Path, route: str, fields: dict[str, Any], param: str
) -> None:
    server = Server(folder)
    async with server.client() as client:
        check(await post(client, route, **fields), 400, param)
        check(await post(client, route, **fields | {"stream": fields.get("stream", True)}), 400)
    assert not server.scheduler.submits


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0]"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"chat_template": "x"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, None),
    ],
)
async def test_chat_fields(folder: Path, fields: dict[str, Any], param: str | None) -> None:
    server = Server(folder)
    async with server.client() as client:
        check(await post(client, CHAT, **fields), 400, param)
    assert not server.scheduler.submits


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        (None, "prompt"),
        ([], "prompt"),
        ("", "empty"),
        ([[]], "empty"),
        ([-1], "-1"),
        ([410], "410"),
        ([2**62], str(2**62)),
        ([2**80], str(2**80)),
        ([[1], [10**9]], str(10**9)),
        (["a", 1], "mixes"),
        ([1.5], "prompt[0]"),
        ([True], "prompt[0]"),
        ({"a": 1}, "prompt"),
        (["a"] * 257, "256"),
    ],
)
async def test_bad_prompts(folder: Path, prompt: Any, named: str) -> None:
    server = Server(folder)
    async with server.client() as client:
        error = check(await post(client, COMPLETIONS, prompt=prompt), 400)
        assert named in error["message"]
        assert not server.scheduler.submits
        await answer(client, COMPLETIONS)


@both
@pytest.mark.parametrize("streamed", [False, True])
async def test_prompt_beyond_the_context(folder: Path, route: str, streamed: bool) -> None:
    server = Server(folder)
    long = "one two " * 200
    fields: dict[str, Any] = {"prompt": long, "messages": [{"role": "user", "content": long}]}
    async with server.client() as client:
        error = check(await post(client, route, stream=streamed, **fields), 400)
        assert error["code"] == "context_length_exceeded"
        assert " 256 tokens" in error["message"]
        fields = {k: v for k, v in fields.items() if k == "prompt"}
        just_right = await answer(client, COMPLETIONS, prompt=[5] * 255)
        assert just_right["usage"]["completion_tokens"] == 1
        error = check(await post(client, COMPLETIONS, prompt=[5] * 256), 400)
        assert "has 256 tokens" in error["message"]


RAW: list[tuple[bytes, int]] = [
    (b"", 400),
    (b"null", 400),
    (b"[]", 400),
    (b"text", 400),
    (b"{", 400),
    (b"{}", 400),
    (b'{"messages": "x", "prompt": {}}', 400),
    (b'{"messages": [{"role": "user", "content": "\\ud83d"}], "prompt": "\\ud83d"}', 400),
    (b'{"messages": [{"role": "user", "content": "\\ude00x"}], "prompt": "\\ude00x"}', 400),
    (b'{"messages": [{"role": "user", "content": "\xed\xa0\xbd"}], "prompt": "\xff"}', 400),
    (b'{"stop": "\\ud83d", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}', 400),
    (b"[" * 100_000, 400),
    (b'{"a":' * 100_000, 400),
    (b'{"zzz": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
    (b'{"zzz": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, 400),
    (b'{"tools": ' + b"[" * 3000 + b"]" * 3000 + b"}", 400),
    (b'{"temperature": NaN, "prompt": "x"}', 400),
    (b'{"temperature": 1e999, "prompt": "x", "messages": []}', 400),
    (b'\x00{"prompt": "x"}', 400),
    (b'{"prompt": "a\x00b", "messages": []}', 400),
    (b'{"prompt": "x", "zzz": "\\ud800", "messages": [{"role": "user", "content": "x"}]}', 400),
    (b'{"prompt": "x", "zzz": NaN, "messages": [{"role": "user", "content": "x"}]}', 400),
    (b'{"prompt": "x", "zzz": "\xff", "messages": [{"role": "user", "content": "x"}]}', 400),
    (b'{"prompt": "x", "zzz": 1e999, "messages": [{"role": "user", "content": "x"}]}', 400),
    (b'{"prompt": "x", "n": ' + b"9" * 5000 + b"}", 400),
    (b'{"n": 1, "n": 1, "prompt": "x", "messages": [{"role": "user", "content": "x"}]}', 400),
    (b'{"n": 1, "\\u006e": 2, "prompt": "x", "messages": []}', 400),
    (b'{"zzz": {"a": 1, "a": 1}, "prompt": "x", "messages": []}', 400),
    (b'{"stream_options": {"x": "\\ud800"}, "prompt": "x", "messages": []}', 400),
    (b'{"\\ud800": 1, "prompt": "x", "messages": []}', 400),
    (b'{"\xff": 1, "prompt": "x", "messages": []}', 400),
    (b'{"prompt": "x", "messages": []}\x00', 400),
    (gzip.compress(b'{"prompt": "x"}', mtime=0), 400),
    ('{"prompt": "x"}'.encode("utf-16"), 400),
    ('{"prompt": "x"}'.encode("utf-32"), 400),
    (b'\xef\xbb\xbf{"prompt": "x"}', 400),
]


async def test_numbers_beyond_range_name_their_field(folder: Path) -> None:
    async with Server(folder).client() as client:
        for value in (b"1e999", b"9" * 400, b"NaN"):
            raw = b'{"prompt": "x", "temperature": ' + value + b"}"
            param = None if value == b"NaN" else "temperature"
            check(await client.post(COMPLETIONS, content=raw), 400, param)
        raw = b'{"prompt": "x", "seed": 1, "seed": 2}'
        check(await client.post(COMPLETIONS, content=raw), 400, "seed")


@both
async def test_whole_floats_are_integers(folder: Path, route: str) -> None:
    server = Server(folder)
    async with server.client() as client:
        await answer(client, route, n=2.0, max_tokens=3.0, top_k=5e0, seed=7.0, temperature=1)
    submits = server.scheduler.submits
    assert [s.max_tokens for s in submits] == [3, 3]
    assert [(s.sampling.top_k, s.sampling.seed) for s in submits] == [(5, 7), (5, 8)]


@both
@pytest.mark.parametrize(("raw", "status"), RAW)
async def test_raw_bodies(folder: Path, route: str, raw: bytes, status: int) -> None:
    server = Server(folder)
    async with server.client() as client:
        check(await client.post(route, content=raw), status)
        await answer(client, route)


@both
async def test_tools_nested_as_deep_as_the_parser_takes(folder: Path, route: str) -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = {"a": deep}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    async with Server(folder).client() as client:
        response = await post(client, route, tools=[tool])
        assert response.status_code in (200, 400)
        await answer(client, route)


async def test_escaped_nul_is_text(folder: Path) -> None:
    server = Server(folder)
    async with server.client() as client:
        await answer(client, COMPLETIONS, prompt="a\x00b")
    assert server.prompt == "a\x00b"


@both
async def test_content_types(folder: Path, route: str) -> None:
    raw = json.dumps(body(route)).encode()
    async with Server(folder).client() as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            check(await client.post(route, content=raw, headers={"content-type": kind}), 415)
        kind = "application/json; charset=utf-16"
        check(await client.post(route, content=raw, headers={"content-type": kind}), 415)
        check(await client.post(route, content=raw, headers={"content-encoding": "gzip"}), 415)
        for kind in ("application/json; charset=utf-8", "application/vnd.x+json"):
            response = await client.post(route, content=raw, headers={"content-type": kind})
            assert response.status_code == 200


@both
async def test_body_limit(folder: Path, route: str) -> None:
    async def chunks() -> Any:
        for _ in range(30):
            yield b" " * 100

    async with Server(folder, max_body_bytes=2000).client() as client:
        check(await client.post(route, content=b" " * 2001), 413)
        check(await client.post(route, content=chunks()), 413)
        await answer(client, route)


async def test_unknown_routes_and_methods(folder: Path) -> None:
    async with Server(folder).client() as client:
        check(await client.get("/v1/nothing"), 404)
        check(await client.get("/nothing"), 404)
        check(await client.get(CHAT), 405)
        check(await client.delete("/v1/models"), 405)
        check(await client.post("/health"), 405)
        for path in (CHAT, "/v1/models", "/docs"):  # a redirect would name a host of the client's
            check(await client.get(f"{path}/", headers={"host": "evil"}), 404)


@both
async def test_unknown_model(folder: Path, route: str) -> None:
    async with Server(folder).client() as client:
        error = check(await post(client, route, model="gpt-9"), 404, "model")
        assert error["code"] == "model_not_found"


@both
async def test_unknown_keys_are_logged_once(
    folder: Path, route: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "radixserve")
    async with Server(folder).client() as client:
        for _ in range(2):
            await answer(client, route, thinking={"type": "adaptive"}, store=False)
    assert caplog.text.count("'thinking'") == 1 and caplog.text.count("'store'") == 1


@both
async def test_neutral_values_of_unsupported_parameters(folder: Path, route: str) -> None:
    neutral = {
        name: values[-1] if values else None for name, values in body_module.UNSUPPORTED.items()
    }
    async with Server(folder).client() as client:
        await answer(client, route, **neutral)


@both
async def test_every_field_may_be_null(folder: Path, route: str) -> None:
    kind = ChatFields if route == CHAT else CompletionFields
    names = {field.name for field in msgspec.structs.fields(kind)} - {"messages", "prompt"}
    async with Server(folder).client() as client:
        await answer(client, route, **dict.fromkeys(names))


async def test_bugs_show_nothing_of_python(folder: Path) -> None:
    server = Server(folder)
    server.front.check_model = lambda name: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    async with server.client() as client:
        response = await post(client, CHAT)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "internal error of the server"


@both
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_full_queue_is_503_before_any_header(
    folder: Path, route: str, streamed: bool
) -> None:
    server = Server(folder)
    server.scheduler.reject = "queue_full"
    async with server.client() as client:
        for seconds, header in ((0.2, "1"), (1.0, "1"), (12.1, "13"), (0.0, None)):
            server.scheduler.retry_after = seconds
            response = await post(client, route, stream=streamed, n=2)
            assert response.status_code == 503
            assert response.headers.get("retry-after") == header
            assert response.json()["error"]["code"] == "queue_full"
        server.scheduler.reject = ""
        await answer(client, route)


@both
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_a_quota_forbids_is_400(folder: Path, route: str, streamed: bool) -> None:
    server = Server(folder)
    server.scheduler.reject = "quota_exceeded"
    async with server.client() as client:
        response = await post(client, route, stream=streamed)
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "not now",
        "type": "invalid_request_error",
        "param": None,
        "code": "quota_exceeded",
    }
    assert "retry-after" not in response.headers
