"""Anthropic's own client over a real socket."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from radixserve.messages import Stop
from tests.api.fakes import Server
from tests.api.sending import MESSAGES, body

pytestmark = pytest.mark.anyio
USER: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [{"name": "go", "input_schema": {"type": "object"}}]
CALL = 'Well. <tool_call>{"name":"go","arguments":{"to":"x"}}</tool_call>'


def connect(url: str, **more: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, max_retries=0, **({"api_key": "k"} | more))


async def test_messages_streams_and_counts(folder: Path) -> None:
    server = Server(folder, "Hello 🎉", api_key="k")
    async with server.listening() as url, connect(url) as client:
        asked: Any = {"model": "tiny", "max_tokens": 100, "messages": USER}
        message = await client.messages.create(**asked)
        (block,) = message.content
        assert block.type == "text" and block.text == "Hello 🎉"
        assert (message.stop_reason, message.usage.cache_read_input_tokens) == ("end_turn", 0)
        async with client.messages.stream(**asked) as stream:
            said = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        assert "".join(said) == "Hello 🎉"
        assert final.model_dump(exclude={"id"}) == message.model_dump(exclude={"id"})
        counted = await client.messages.count_tokens(model="tiny", messages=USER)
        assert counted.input_tokens == message.usage.input_tokens
        beta = await client.beta.messages.create(**asked, betas=["context-1m-2025-08-07"])
        assert beta.usage == beta.usage.model_validate(message.usage.model_dump())
    async with server.listening() as url, connect(url, api_key=None, auth_token="k") as client:
        assert (await client.messages.create(**asked)).stop_reason == "end_turn"


async def test_the_tool_runner_sends_the_whole_conversation(folder: Path) -> None:
    """Told that there are no threads here, it goes on without; what a server holds is not sent."""

    @anthropic.beta_async_tool
    async def go(to: str) -> str:
        """Goes there."""
        return f"went to {to}"

    server = Server(folder, CALL, tool_call_parser="hermes")
    prompts, reasons = [], []
    async with server.listening() as url, connect(url) as client:
        asked: Any = {"model": "tiny", "max_tokens": 100, "messages": USER}
        async for message in client.beta.messages.tool_runner(**asked, tools=[go]):
            prompts.append(server.prompt)
            reasons.append(message.stop_reason)
            server.say("There.")
    assert reasons == ["tool_use", "end_turn"]
    assert "hi" in prompts[1] and "went to x" in prompts[1]


async def test_a_tool_loop(folder: Path) -> None:
    server = Server(folder, CALL, tool_call_parser="hermes")
    async with server.listening() as url, connect(url) as client:
        asked: Any = {"model": "tiny", "max_tokens": 100, "messages": USER, "tools": TOOLS}
        async with client.messages.stream(**asked) as stream:
            parts = [item.partial_json async for item in stream if item.type == "input_json"]
            message = await stream.get_final_message()
        assert message.stop_reason == "tool_use" and "".join(parts) == '{"to":"x"}'
        text, call = message.content
        assert text.type == "text" and text.text == "Well."
        assert call.type == "tool_use" and (call.name, call.input) == ("go", {"to": "x"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "ok"}
        asked["messages"] = [*USER, message.to_param(), {"role": "user", "content": [result]}]
        server.say("Done.")
        last = await client.messages.create(**asked)
        assert last.content[0].type == "text" and last.content[0].text == "Done."
    assert '{"to": "x"}' in server.prompt and "<|im_start|>tool\nok" in server.prompt


async def test_its_errors(folder: Path) -> None:
    server = Server(folder, [70], api_key="k")
    asked: Any = {"model": "tiny", "max_tokens": 100, "messages": USER}
    async with server.listening() as url:
        async with connect(url, api_key="wrong") as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(**asked)
        async with connect(url) as client:
            with pytest.raises(anthropic.NotFoundError) as missing:
                await client.messages.create(**asked | {"model": "no"})
            assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
            with pytest.raises(anthropic.BadRequestError):
                await client.messages.create(**asked | {"messages": []})
            server.scheduler.pause = 0.01
            with pytest.raises(anthropic.APIStatusError, match="the worker died"):
                async with client.messages.stream(**asked) as stream:
                    async for _ in stream:
                        server.engine.deliver([Stop("the worker died")])


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_aborts_its_request(folder: Path, streamed: bool) -> None:
    server = Server(folder, [70])
    server.scheduler.pause = 0.01
    async with server.listening() as url, httpx.AsyncClient(base_url=url) as client:
        fields = body(MESSAGES, stream=streamed)
        with pytest.raises(httpx.ReadTimeout):
            async with client.stream("POST", MESSAGES, json=fields, timeout=0.4) as response:
                async for _ in response.aiter_raw():
                    raise httpx.ReadTimeout("enough")
        async with asyncio.timeout(5):
            while not server.scheduler.aborts:
                await asyncio.sleep(0.01)
    assert server.scheduler.aborts == [server.scheduler.submits[0].request_id]
    assert not server.scheduler.finished
