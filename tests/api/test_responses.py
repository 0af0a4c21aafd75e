"""`/v1/responses`: answers as items and events, whole and streamed."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from llguidance import LLMatcher

from radixserve.messages import Stop
from tests.api.fakes import Server
from tests.api.responding import RESPONSES, both, respond, stream, types

pytestmark = pytest.mark.anyio

GO: dict[str, Any] = {"type": "function", "name": "go"}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
ARGUMENTS = '{"city": "Par is"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
SPACE: dict[str, Any] = {"type": "namespace", "name": "ns", "description": "", "tools": [GO]}
EVERY_FIELD = {  # what Open Responses 2.3.0 requires of a response
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model"),
    *("previous_response_id", "instructions", "output", "error", "tools", "tool_choice"),
    *("truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty"),
    *("frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage"),
    *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata"),
    *("safety_identifier", "prompt_cache_key"),
}
TEXT_EVENTS = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]
BEGIN = ["created", "in_progress"]


@pytest.fixture
def server(folder: Path) -> Server:
    return Server(folder, tool_call_parser="hermes", reasoning_parser="hermes")


async def test_a_text(server: Server) -> None:
    server.scheduler.cached = lambda _: 3
    whole, events = await both(server, "Hello 🎉")
    assert whole.keys() == EVERY_FIELD
    assert whole["id"].startswith("resp_") and whole["object"] == "response"
    assert whole["status"] == "completed" and whole["completed_at"] >= whole["created_at"]
    (message,) = whole["output"]
    assert message["id"].startswith("msg_")
    part = {"type": "output_text", "text": "Hello 🎉", "annotations": [], "logprobs": []}
    assert message == {
        "id": message["id"],
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    usage, prompt = whole["usage"], len(server.scheduler.submits[0].prompt) // 4
    assert usage["input_tokens"] == prompt and usage["input_tokens_details"]["cached_tokens"] == 3
    assert usage["total_tokens"] == prompt + usage["output_tokens"]
    assert types(events) == [*BEGIN, *TEXT_EVENTS, "completed"]
    assert events[0]["response"]["status"] == "in_progress" and not events[0]["response"]["output"]


async def test_reasoning_and_a_call(server: Server) -> None:
    text = f"<think>\nHm, 3 < 4.\n</think>\n\nI look. {CALL}"
    whole, events = await both(server, text, tools=[WEATHER], max_output_tokens=200)
    reasoning, message, call = whole["output"]
    assert reasoning["summary"] == [] and reasoning["id"].startswith("rs_")
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm, 3 < 4."}]
    assert message["content"][0]["text"] == "I look."
    assert (call["type"], call["name"], call["status"]) == (
        "function_call",
        "get_weather",
        "completed",
    )
    assert call["id"].startswith("fc_") and call["call_id"].startswith("call_")
    assert json.loads(call["arguments"]) == {"city": "Par is"}
    details = whole["usage"]["output_tokens_details"]
    assert 5 <= details["reasoning_tokens"] < whole["usage"]["output_tokens"] - 20
    thinking = [name.replace("output_text", "reasoning_text") for name in TEXT_EVENTS]
    calling = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert types(events) == [*BEGIN, *thinking, *TEXT_EVENTS, *calling, "completed"]


async def test_calls_in_namespaces(server: Server) -> None:
    calls = "".join(
        f'<tool_call>{{"name":"{name}","arguments":{{}}}}</tool_call>' for name in ("ns.go", "go")
    )
    whole, _ = await both(server, calls, tools=[SPACE, GO])
    first, second = whole["output"]
    assert (first["namespace"], first["name"]) == ("ns", "go")
    assert second["name"] == "go" and "namespace" not in second
    assert '"ns.go"' in server.prompt
    assert [tool["type"] for tool in whole["tools"]] == ["namespace", "function"]


async def test_tools_that_the_provider_runs_are_left_out(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        whole, _ = await both(server, "x", tools=[{"type": "web_search"}, {"type": "x"}, GO])
    assert [tool["name"] for tool in whole["tools"]] == ["go"]
    assert "web_search" not in server.prompt and '"go"' in server.prompt
    left = [r.getMessage() for r in caplog.records if "leaving out" in r.getMessage()]
    assert len(left) == 2 and "web_search" in left[0]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["get_weather", "go", "ns.go"]),
        ({"type": "function", "name": "go"}, ["go"]),
        ({"type": "function", "name": "go", "namespace": "ns"}, ["ns.go"]),
        ({"type": "function", "name": "ns.go"}, ["ns.go"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [GO]}, ["go"]),
    ],
    ids=str,
)
async def test_forced_calls_have_a_grammar(server: Server, choice: Any, names: list[str]) -> None:
    whole, _ = await both(server, "x", tools=[WEATHER, GO, SPACE], tool_choice=choice)
    grammar = server.scheduler.submits[0].sampling.grammar
    assert grammar and not LLMatcher.validate_grammar(grammar)
    assert [n for n in ("get_weather", "go", "ns.go") if f'"{n}"' in grammar] == names
    assert all(f'"{name}"' in server.prompt for name in ("get_weather", "go", "ns.go"))
    assert whole["tool_choice"] == choice


async def test_without_a_choice_there_are_no_tools(server: Server) -> None:
    whole, _ = await both(server, CALL, tools=[WEATHER], tool_choice="none")
    assert whole["output"][0]["content"][0]["text"] == CALL
    assert "get_weather" not in server.prompt


@pytest.mark.parametrize(
    ("wanted", "needed"),
    [
        ({"type": "text"}, ""),
        ({"type": "json_object"}, "object"),
        (
            {"type": "json_schema", "name": "n", "schema": {"properties": {"aa": {}}}},
            "aa",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_formats_of_the_text(server: Server, wanted: Any, needed: str) -> None:
    whole, _ = await both(server, "{}", text={"format": wanted, "verbosity": "low"})
    grammar = server.scheduler.submits[0].sampling.grammar
    assert (needed in grammar) if needed else not grammar
    assert whole["text"]["format"]["type"] == wanted["type"]
    assert whole["text"]["verbosity"] == "low"


async def test_an_answer_that_is_cut_off(server: Server) -> None:
    whole, events = await both(server, "Hello there", max_output_tokens=3)
    assert whole["status"] == "incomplete" and whole["completed_at"] is None
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert whole["output"][0]["status"] == "incomplete"
    assert types(events)[-1] == "incomplete"


async def test_a_limit_beyond_the_context_is_clamped(server: Server) -> None:
    whole, _ = await both(server, "Hello", max_output_tokens=32000)
    assert whole["max_output_tokens"] == 32000
    assert server.scheduler.submits[0].max_tokens < 256


async def test_no_text_is_a_message_without_text(server: Server) -> None:
    whole, events = await both(server, "")
    assert whole["output"][0]["content"][0]["text"] == ""
    assert types(events) == [*BEGIN, *(t for t in TEXT_EVENTS if "delta" not in t), "completed"]


async def test_log_probabilities_are_of_the_text(server: Server) -> None:
    include = ["message.output_text.logprobs", "whatever"]
    text = "<think>\nHm.\n</think>\n\nHello you"
    whole, _ = await both(server, text, include=include, top_logprobs=2)
    part = whole["output"][1]["content"][0]
    joined = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
    assert joined == b"Hello you"
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])


async def test_settings_are_said_again(server: Server) -> None:
    said = {
        "metadata": {"a": "b"},
        "user": "u",
        "temperature": 0.5,
        "top_p": 0.9,
        "truncation": "auto",
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "instructions": "Be brief.",
        "reasoning": {"effort": "low", "summary": "auto"},
        "store": False,
        "max_tool_calls": 3,
    }
    ignored = {"client_metadata": {"x": 1}, "service_tier": "flex", "context_management": []}
    whole, _ = await both(server, "x", **said, **ignored)
    assert {key: whole[key] for key in said} == said
    assert whole["service_tier"] == "default"
    assert "system\nBe brief.<|im_end|>" in server.prompt


async def test_a_stream_that_breaks_ends_as_failed(server: Server) -> None:
    server.scheduler.script = lambda _: [70]
    server.scheduler.pause = 0.01
    lines = []
    async with server.listening() as url, httpx.AsyncClient(base_url=url) as client:
        fields = {"input": "hi", "stream": True}
        async with client.stream("POST", RESPONSES, json=fields) as response:
            async for line in response.aiter_lines():
                lines.append(line)
                if len(lines) == 20:
                    server.engine.deliver([Stop("the worker died")])
    last = json.loads([line for line in lines if line][-1].removeprefix("data: "))
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "the worker died"}
    assert f"event: {last['type']}" in lines


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refusal_of_the_engine_has_its_status(server: Server, streamed: bool) -> None:
    server.scheduler.reject = "queue_full"
    async with server.client() as client:
        got = await client.post(RESPONSES, json={"input": "hi", "stream": streamed})
    assert got.status_code == 503 and got.json()["error"]["code"] == "queue_full"


async def test_an_aborted_request_has_failed(server: Server) -> None:
    server.scheduler.script = lambda _: [70]
    server.scheduler.pause = 0.01
    async with server.client() as client:
        events = await _aborted(server, client)
    response = events[-1]["response"]
    assert response["status"] == "failed" and "aborted" in response["error"]["message"]
    assert events[-1]["type"] == "response.failed"


async def _aborted(server: Server, client: httpx.AsyncClient) -> list[Any]:
    task = asyncio.create_task(stream(client))
    while not server.scheduler.submits:
        await asyncio.sleep(0.01)
    got = await client.post("/abort_request", json={"abort_all": True})
    assert got.status_code == 200
    return await task


async def test_stored_responses_ask_for_the_key(folder: Path) -> None:
    async with Server(folder, api_key="k").client() as client:
        for method in ("GET", "DELETE"):
            got = await client.request(method, f"{RESPONSES}/resp_1")
            assert got.status_code == 401
        client.headers["authorization"] = "Bearer k"
        assert (await respond(client))["status"] == "completed"
