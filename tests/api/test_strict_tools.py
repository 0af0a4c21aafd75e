"""Strict tools where the model is free to call: what the engine is asked for, on every surface."""

import logging
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from tests.api.fakes import Server
from tests.api.sending import CHAT, MESSAGES, answer, fault_of, post, stream

pytestmark = pytest.mark.anyio
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
RESPONSES = "/v1/responses"
FITS = 'Hm. <tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
MISFITS = FITS.replace("Paris", "Oslo")


def body(route: str, strict: Any = True, schema: Any = SCHEMA, **fields: Any) -> dict[str, Any]:
    """A request with one tool. `strict`: as the tool has it, None: not at all."""
    said = {} if strict is None else {"strict": strict}
    if route == RESPONSES:
        tool = {"type": "function", "name": "weather", "parameters": schema} | said
        return {"input": "hi", "tools": [tool]} | fields
    messages = [{"role": "user", "content": "hi"}]
    if route == MESSAGES:
        tool = {"name": "weather", "input_schema": schema} | said
        return {"messages": messages, "max_tokens": 99, "tools": [tool]} | fields
    function = {"name": "weather", "parameters": schema} | said
    tools = [{"type": "function", "function": function}]
    return {"messages": messages, "tools": tools} | fields


every_route = pytest.mark.parametrize("route", [CHAT, RESPONSES, MESSAGES])


@pytest.fixture
def server(folder: Path) -> Server:
    return Server(folder, "Hello", tool_call_parser="hermes", reasoning_parser="hermes")


async def grammar_of(server: Server, route: str, **fields: Any) -> str:
    async with server.client() as client:
        response = await client.post(route, json=body(route, **fields))
    assert response.status_code == 200, response.text
    return server.scheduler.submits[-1].sampling.grammar


def takes(folder: Path, grammar: str, text: str) -> bool:
    tokenizer = LLTokenizer((folder / "tokenizer.json").read_text(), eos_token=2)
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    tokens = tokenizer.tokenize_str(text)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@every_route
async def test_calls_must_fit_and_text_need_not(server: Server, folder: Path, route: str) -> None:
    grammar = await grammar_of(server, route)
    assert takes(folder, grammar, FITS) and takes(folder, grammar, "Hello <b>you</b>")
    assert not takes(folder, grammar, MISFITS)
    assert takes(folder, grammar, "<think>Should I <tool_call> now?</think>No.")


@every_route
@pytest.mark.parametrize("strict", [None, False, "true", 1])
async def test_other_tools_stay_free(server: Server, route: str, strict: Any) -> None:
    assert await grammar_of(server, route, strict=strict) == ""


@every_route
async def test_the_prompt_does_not_say_it_where_it_did_not_before(
    server: Server, route: str
) -> None:
    await grammar_of(server, route)
    assert ("strict" in server.prompt) == (route == CHAT)  # chat's tools are printed as they come


async def test_a_schema_that_cannot_be_enforced_is_refused(server: Server) -> None:
    schema = SCHEMA | {"properties": {"city": {"type": "string", "pattern": "(?=x)y"}}}
    async with server.client() as client:
        response = await client.post(CHAT, json=body(CHAT, schema=schema))
        assert response.status_code == 400
        assert fault_of(CHAT, response)["param"] == "tools"
        free = await client.post(CHAT, json=body(CHAT, schema=schema, strict=False))
    assert free.status_code == 200


async def test_a_format_of_the_answer_goes_first(server: Server, folder: Path) -> None:
    """But calls, which may come in its place, must fit all the same."""
    grammar = await grammar_of(server, CHAT, response_format={"type": "json_object"})
    assert takes(folder, grammar, '{"a": 1}') and not takes(folder, grammar, "Hello")
    assert takes(folder, grammar, FITS.removeprefix("Hm. "))
    assert not takes(folder, grammar, MISFITS.removeprefix("Hm. "))
    free = await grammar_of(server, CHAT, response_format={"type": "json_object"}, strict=False)
    assert takes(folder, free, MISFITS.removeprefix("Hm. "))


@pytest.mark.parametrize(("choice", "calls"), [("none", False), ("required", True)])
async def test_other_choices_are_as_they_were(
    server: Server, folder: Path, choice: str, calls: bool
) -> None:
    grammar = await grammar_of(server, CHAT, tool_choice=choice)
    assert bool(grammar) == calls
    assert not calls or not takes(folder, grammar, FITS), "nothing but calls"


async def test_reasoning_that_the_prompt_begins_is_free(folder: Path) -> None:
    server = Server(folder, "Hello", tool_call_parser="hermes", reasoning_parser="hermes")
    assert server.front.template is not None
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>"}]
    fields = {"messages": messages, "continue_final_message": True}
    grammar = await grammar_of(server, CHAT, **fields)
    assert takes(folder, grammar, "A <tool_call> maybe?</think>No.")
    assert not takes(folder, grammar, f"Well</think>{MISFITS}")


@pytest.mark.parametrize(
    ("format", "fits"),
    [
        ("gpt_oss", "<|channel|>commentary to=functions.weather<|message|>{}"),
        ("qwen3_xml", "<function=weather>\n<parameter=city>\n{}\n</parameter>\n</function>"),
        ("llama4_pythonic", "[weather(city={})]"),
        ("llama3_json", '{{"name": "weather", "parameters": {}}}'),
    ],
)
async def test_other_formats(folder: Path, format: str, fits: str) -> None:
    """Each spells values in its own way."""
    spelled = {"qwen3_xml": "{}", "llama4_pythonic": "'{}'"}.get(format, '{{"city": "{}"}}')
    server = Server(folder, "Hello", tool_call_parser=format)
    grammar = await grammar_of(server, CHAT)
    assert takes(folder, grammar, fits.format(spelled.format("Paris")))
    assert not takes(folder, grammar, fits.format(spelled.format("Oslo")))
    assert takes(folder, grammar, "Hello <b>you</b>")


@every_route
async def test_a_schema_that_a_format_cannot_enforce_is_refused(folder: Path, route: str) -> None:
    server = Server(folder, "Hello", tool_call_parser="qwen3_xml")
    schema = SCHEMA | {"properties": {"city": {"type": "string", "format": "iri"}}}
    async with server.client() as client:
        response = await client.post(route, json=body(route, schema=schema))
    assert response.status_code == 400 and "the format iri" in response.text


async def test_no_format_of_calls_is_said_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(folder, "Hello", tool_call_parser="none")
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert await grammar_of(server, CHAT) == ""
    assert [r.message for r in caplog.records if "strict" in r.message] == [
        "strict tools are not enforced: no format of calls is known for this model (said once)"
    ]


async def test_every_choice_is_held_and_streams_say_the_same(server: Server) -> None:
    server.say(FITS)
    fields = {"tools": body(CHAT)["tools"], "n": 3}
    async with server.client() as client:
        whole = await answer(client, CHAT, **fields)
        chunks = await stream(client, CHAT, **fields)
        assert (await post(client, CHAT, **fields)).status_code == 200
    assert len({submit.sampling.grammar for submit in server.scheduler.submits}) == 1
    for index, choice in enumerate(whole["choices"]):
        (call,) = choice["message"]["tool_calls"]
        deltas = [
            c["delta"]["tool_calls"][0]["function"]["arguments"]
            for chunk in chunks[:-1]
            for c in chunk["choices"]
            if c["index"] == index and "tool_calls" in c["delta"]
        ]
        assert "".join(deltas) == call["function"]["arguments"] == '{"city": "Paris"}'
        assert choice["message"]["content"] == "Hm."
