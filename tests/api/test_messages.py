"""Anthropic's dialect: answers, streamed and whole."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from radixserve.messages import Submit
from tests.api.fakes import Server
from tests.api.sending import COUNT, MESSAGES, answer, body, post

pytestmark = pytest.mark.anyio
GO: dict[str, Any] = {"name": "go", "input_schema": {}}  # short: 256 tokens hold all
STOP: dict[str, Any] = {"name": "stop", "input_schema": {}}
TOOLS = [GO, STOP]
CALL = '<tool_call>{"name":"go","arguments":{"to": "Par is",  "n": 1e2}}</tool_call>'
OTHER = '<tool_call>{"name":"stop","arguments":{}}</tool_call>'
THOUGHT = "<think>\nHm, 3 < 4.\n</think>\n\n"


@pytest.fixture
def server(folder: Path) -> Server:
    return Server(folder, tool_call_parser="hermes", reasoning_parser="hermes")


def named_events(text: str) -> list[dict[str, Any]]:
    """The data of a stream's events, each of the type that its name says."""
    found = []
    for part in text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a well-formed stream says."""
    first, ping, *middle, last_delta, end = events
    assert (first["type"], ping) == ("message_start", {"type": "ping"})
    assert (last_delta["type"], end) == ("message_delta", {"type": "message_stop"})
    message: dict[str, Any] = first["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    blocks, texts, is_open = message["content"], "", False
    for data in middle:
        match data["type"]:
            case "content_block_start":
                assert not is_open and data["index"] == len(blocks)
                is_open, texts = True, ""
                blocks.append(data["content_block"])
            case "content_block_delta":
                assert is_open and data["index"] == len(blocks) - 1
                kind, text = data["delta"].values()
                name = kind.removesuffix("_delta")
                assert name != "input_json" or blocks[-1]["type"] == "tool_use"
                if name == "input_json":
                    texts += text
                else:
                    blocks[-1][name] += text
            case "content_block_stop":
                assert is_open and data["index"] == len(blocks) - 1
                is_open = False
                if blocks[-1]["type"] == "tool_use":
                    blocks[-1]["input"] = json.loads(texts)
            case kind:
                raise AssertionError(kind)
    assert not is_open
    usage = message["usage"] | last_delta["usage"]
    return message | last_delta["delta"] | {"usage": usage}


async def say(server: Server, text: str, **fields: Any) -> dict[str, Any]:
    """What a model's text becomes, streamed and whole alike but for the ids."""
    server.say(text)
    async with server.client() as client:
        whole = await answer(client, MESSAGES, **fields)
        streamed = await post(client, MESSAGES, stream=True, **fields)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    said = [whole, folded(named_events(streamed.text))]
    ids = [
        [message.pop("id"), *(b.pop("id") for b in message["content"] if b["type"] == "tool_use")]
        for message in said
    ]
    for first, *rest in ids:
        assert re.fullmatch(r"msg_[0-9a-f]{24}", first)
        assert all(re.fullmatch(r"toolu_[0-9a-f]{24}", other) for other in rest)
        assert len({*rest}) == len(rest)
    assert said[0] == said[1]
    return whole


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": None}


def thinking_block(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}


def use_block(name: str, **input: Any) -> dict[str, Any]:
    caller = {"type": "direct"}
    return {"type": "tool_use", "name": name, "input": input, "caller": caller}


async def test_a_message(server: Server) -> None:
    server.scheduler.cached = lambda _: 3
    message = await say(server, "Hello 🎉")
    prompt = len(server.scheduler.submits[0].prompt) // 4
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [text_block("Hello 🎉")],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": {
            "input_tokens": prompt - 3,
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": len(server.script),
            "output_tokens_details": None,
            "server_tool_use": None,
            "service_tier": "standard",
            "inference_geo": None,
        },
    }


ANSWERS: list[tuple[str, list[dict[str, Any]], str]] = [
    ("", [], "end_turn"),
    (f"{THOUGHT}Four.", [thinking_block("Hm, 3 < 4."), text_block("Four.")], "end_turn"),
    (f"Well. {CALL}", [text_block("Well."), use_block("go", to="Par is", n=100.0)], "tool_use"),
    (f"{CALL}{OTHER}", [use_block("go", to="Par is", n=100.0), use_block("stop")], "tool_use"),
    (f"{THOUGHT}{OTHER}", [thinking_block("Hm, 3 < 4."), use_block("stop")], "tool_use"),
]


@pytest.mark.parametrize("tokens", [1, 3, 99])
@pytest.mark.parametrize(("text", "content", "reason"), ANSWERS, ids=lambda v: str(v)[:20])
async def test_blocks(
    server: Server, text: str, content: list[dict[str, Any]], reason: str, tokens: int
) -> None:
    server.scheduler.per_message = tokens
    message = await say(server, text, tools=TOOLS)
    assert (message["content"], message["stop_reason"]) == (content, reason)


async def test_arguments_are_as_the_model_wrote_them(server: Server) -> None:
    server.say(CALL)
    async with server.client() as client:
        response = await post(client, MESSAGES, tools=TOOLS)
    assert '"input":{"to": "Par is",  "n": 1e2}' in response.text


async def test_without_tools_a_call_is_text(server: Server) -> None:
    assert (await say(server, OTHER))["content"] == [text_block(OTHER)]
    asked = await say(server, OTHER, tools=TOOLS, tool_choice={"type": "none"})
    assert (asked["content"], asked["stop_reason"]) == ([text_block(OTHER)], "end_turn")
    assert "<|im_start|>tools" not in server.prompt


async def test_why_it_ended(server: Server) -> None:
    long = await say(server, "Hello there", max_tokens=3)
    assert (long["stop_reason"], long["usage"]["output_tokens"]) == ("max_tokens", 3)
    stopped = await say(server, "one two three", stop_sequences=["x", "thr", "two t"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "two t")
    assert stopped["content"] == [text_block("one ")]
    huge = await say(server, "Hello", max_tokens=32_000)
    assert huge["stop_reason"] == "end_turn"
    assert server.scheduler.submits[-1].max_tokens < 256


async def test_a_call_that_is_cut_off(server: Server) -> None:
    message = await say(server, CALL, tools=TOOLS, max_tokens=len(CALL) // 2)
    assert message["stop_reason"] == "max_tokens"
    assert all(isinstance(block["input"], dict) for block in message["content"])


async def test_an_aborted_answer(server: Server) -> None:
    def script(_: Submit) -> list[int]:
        server.engine.abort(None)
        return [70]

    server.scheduler.script = script
    async with server.client() as client:
        assert (await answer(client, MESSAGES))["stop_reason"] == "max_tokens"


async def test_sampling(server: Server) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 5, "cache_salt": "s"}
    await say(server, "x", **fields, priority=2)
    submit = server.scheduler.submits[0]
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.seed, submit.namespace.salt, submit.priority) == (5, "s", 2)


CHOICES: list[tuple[dict[str, Any], list[str]]] = [
    ({"type": "any"}, ["go", "stop"]),
    ({"type": "any", "disable_parallel_tool_use": True}, ["go", "stop"]),
    ({"type": "tool", "name": "stop"}, ["stop"]),
]


@pytest.mark.parametrize(("choice", "names"), CHOICES, ids=str)
async def test_forced_calls_have_a_grammar(
    server: Server, choice: dict[str, Any], names: list[str]
) -> None:
    message = await say(server, OTHER, tools=TOOLS, tool_choice=choice)
    grammar = server.scheduler.submits[0].sampling.grammar
    assert grammar and not LLMatcher.validate_grammar(grammar)
    assert [name for name in ("go", "stop") if f'"{name}"' in grammar] == names
    assert (message["content"], message["stop_reason"]) == ([use_block("stop")], "tool_use")


async def test_one_call_or_several(server: Server) -> None:
    grammars = []
    for single in (False, True):
        choice = {"type": "any", "disable_parallel_tool_use": single}
        await say(server, "x", tools=TOOLS, tool_choice=choice)
        grammars.append(server.scheduler.submits[-1].sampling.grammar)
    assert grammars[0] != grammars[1]


async def test_an_answer_that_fits_a_schema(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    config = {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    await say(server, "{}", output_config=config)
    grammar = server.scheduler.submits[0].sampling.grammar
    assert '"a"' in grammar and not LLMatcher.validate_grammar(grammar)


async def test_an_answer_that_is_one_of_some(server: Server) -> None:
    said = await say(server, CALL, tools=TOOLS, structured_outputs={"choice": [CALL, "No."]})
    grammar = server.scheduler.submits[0].sampling.grammar
    assert '"No."' in grammar and not LLMatcher.validate_grammar(grammar)
    assert said["stop_reason"] == "tool_use", "a call that was chosen is a call"


async def test_what_has_no_effect_is_accepted(server: Server) -> None:
    marked = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]
    tools = [GO | {"cache_control": {"type": "ephemeral"}, "eager_input_streaming": True}]
    plain = await say(server, "x", tools=[GO])
    before = server.prompt
    claude_code = await say(
        server,
        "x",
        messages=[{"role": "user", "content": marked}],
        tools=tools,
        metadata={"user_id": "u"},
        service_tier="auto",
        context_management={"edits": [{"type": "clear_thinking_20251015"}]},
        output_config={"effort": "high"},
        mcp_servers=[],
        cache_control={"type": "ephemeral"},
        betas=["x"],
    )
    assert (claude_code, server.prompt) == (plain, before)


async def test_tools_of_anthropics_servers_are_left_out(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "radixserve")
    search = {"type": "web_search_20250305", "name": "web_search"}
    await say(server, "x", tools=[search, GO | {"type": "custom"}])
    assert "go" in server.prompt and "web_search" not in server.prompt
    assert caplog.text.count("web_search_20250305") == 1
    await say(server, "x", tools=[search])
    assert "<|im_start|>tools" not in server.prompt


async def test_tokens_are_counted_as_they_are_computed(server: Server) -> None:
    fields = {"system": "Be brief.", "tools": TOOLS, "thinking": {"type": "adaptive"}}
    async with server.client() as client:
        counted = await client.post(f"{COUNT}?beta=true", json=body(COUNT, **fields))
        asked = await client.post(f"{MESSAGES}?beta=true", json=body(MESSAGES, **fields))
        long = [{"role": "user", "content": "one two " * 300}]
        more = await answer(client, COUNT, messages=long)
    assert counted.json() == {"input_tokens": asked.json()["usage"]["input_tokens"]}
    assert more["input_tokens"] > 256, "beyond the context"
