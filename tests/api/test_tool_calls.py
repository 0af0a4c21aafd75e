"""Tool calls and reasoning in answers, streamed and whole; and what forces them."""

import json
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from tests.api.fakes import Server
from tests.api.sending import CHAT, answer, post, stream

pytestmark = pytest.mark.anyio
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
STOP: dict[str, Any] = {"type": "function", "function": {"name": "stop"}}
TOOLS = [WEATHER, STOP]
ARGUMENTS = '{"city": "Par is", "days": 2}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
GO: dict[str, Any] = {"type": "function", "function": {"name": "go"}}
TWO = "".join(  # short: the fake engine has room for 256 characters or so
    f'<tool_call>{{"name":"{name}","arguments":{{}}}}</tool_call>' for name in ("go", "stop")
)


def joined(chunks: list[Any], index: int = 0) -> dict[str, Any]:
    """The message that a stream's deltas make."""
    content, reasoning, calls = "", "", []
    for chunk in chunks[:-1]:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or ():
                if call["index"] == len(calls):
                    calls.append({"id": call["id"], "name": call["function"]["name"], "text": ""})
                calls[call["index"]]["text"] += call["function"]["arguments"]
    return {"content": content, "reasoning": reasoning, "calls": calls}


@pytest.fixture
def server(folder: Path) -> Server:
    return Server(folder, tool_call_parser="hermes", reasoning_parser="hermes")


async def say(server: Server, text: str, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """What a model's text becomes, whole and streamed."""
    server.say(text)
    async with server.client() as client:
        whole = await answer(client, CHAT, **fields)
        return whole, await stream(client, CHAT, **fields)


async def test_a_call_is_a_call(server: Server) -> None:
    whole, chunks = await say(server, f"Let me see. {CALL}", tools=TOOLS)
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call-")
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Par is", "days": 2}
    got = joined(chunks)
    assert got["content"] == "Let me see." and got["reasoning"] == ""
    assert [c["text"] for c in got["calls"]] == [call["function"]["arguments"]]
    finishes = [c["finish_reason"] for chunk in chunks[:-1] for c in chunk["choices"]]
    assert finishes[-1] == "tool_calls" and not any(finishes[:-1])


async def test_calls_in_parallel_and_no_content(server: Server) -> None:
    whole, chunks = await say(server, TWO, tools=[GO, STOP])
    message = whole["choices"][0]["message"]
    assert message["content"] is None
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["go", "stop"]
    assert len({c["id"] for c in message["tool_calls"]}) == 2
    assert [c["name"] for c in joined(chunks)["calls"]] == ["go", "stop"]


async def test_reasoning_is_apart(server: Server) -> None:
    whole, chunks = await say(server, "<think>\nHm, 3 < 4.\n</think>\n\nFour.")
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, 3 < 4.", "Four.")
    got = joined(chunks)
    assert (got["reasoning"], got["content"]) == ("Hm, 3 < 4.", "Four.")


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}], ids=str)
async def test_without_tools_a_call_is_text(server: Server, fields: dict[str, Any]) -> None:
    whole, chunks = await say(server, CALL, **fields)
    message = whole["choices"][0]["message"]
    assert message["content"] == CALL and "tool_calls" not in message
    assert joined(chunks)["content"] == CALL
    assert whole["choices"][0]["finish_reason"] == "stop"


async def test_a_call_that_is_cut_off_ends_by_length(server: Server) -> None:
    whole, chunks = await say(server, CALL, tools=TOOLS, max_tokens=len(CALL) // 2)
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "length"
    calls = choice["message"].get("tool_calls", [])
    streamed = [c["text"] for c in joined(chunks)["calls"]]
    assert [c["function"]["arguments"] for c in calls] == streamed


async def test_log_probabilities_are_of_all_tokens(server: Server) -> None:
    whole, chunks = await say(server, CALL, tools=TOOLS, logprobs=True)
    of_whole = whole["choices"][0]["logprobs"]["content"]
    of_stream = [
        entry
        for chunk in chunks[:-1]
        for choice in chunk["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert of_stream == of_whole and len(of_whole) >= len(CALL) // 4


FORCED: list[tuple[Any, list[str]]] = [
    ("required", ["get_weather", "stop"]),
    ({"type": "function", "function": {"name": "stop"}}, ["stop"]),
]


@pytest.mark.parametrize(("choice", "names"), FORCED, ids=str)
async def test_forced_calls_have_a_grammar(server: Server, choice: Any, names: list[str]) -> None:
    # A format is one of texts: agents send theirs with every turn, those of forced calls too.
    format = {"type": "json_object"}
    await say(server, "x", tools=TOOLS, tool_choice=choice, response_format=format)
    grammar = server.scheduler.submits[0].sampling.grammar
    assert grammar and not LLMatcher.validate_grammar(grammar)
    assert [name for name in ("get_weather", "stop") if f'"{name}"' in grammar] == names


async def test_a_named_call_ends_with_stop(server: Server) -> None:
    whole, _ = await say(server, CALL, tools=TOOLS, tool_choice=_function("get_weather"))
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "stop" and len(choice["message"]["tool_calls"]) == 1


def _odd() -> dict[str, Any]:
    """A tool whose schema no grammar can honour."""
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def _function(name: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "always", "tools": TOOLS}, "tool_choice"),
    ({"tool_choice": _function("other"), "tools": TOOLS}, "tool_choice"),
    ({"tool_choice": _function(3), "tools": TOOLS}, "tool_choice"),
    ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "tool_choice"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]},
        "tools[0].function.parameters",
    ),
    ({"tool_choice": "required", "tools": [_odd()]}, "tools"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: str(value)[:50])
async def test_what_makes_no_sense_is_refused(
    server: Server, fields: dict[str, Any], param: str
) -> None:
    async with server.client() as client:
        response = await post(client, CHAT, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("parser", ["auto", "none"])
async def test_a_model_without_a_format_says_text(folder: Path, parser: str) -> None:
    server = Server(folder, tool_call_parser=parser, reasoning_parser=parser)
    whole, chunks = await say(server, CALL, tools=TOOLS)
    assert whole["choices"][0]["message"]["content"] == CALL == joined(chunks)["content"]
