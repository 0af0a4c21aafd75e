"""The official client's ways to ask for responses, over a real socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseReasoningItem

from tests.api.fakes import Server
from tests.api.responding import RESPONSES
from tests.api.test_clients import endless, eventually

pytestmark = pytest.mark.anyio

CALL = '<tool_call>{"name":"go","arguments":{"a": 1}}</tool_call>'
GO: Any = {"type": "function", "name": "go", "parameters": None, "strict": False}


class Answer(pydantic.BaseModel):
    city: Literal["Paris", "Rome"]


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        server.listening() as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        yield client


@pytest.fixture
def server(folder: Path) -> Server:
    return Server(folder, "Hello 🎉", tool_call_parser="hermes", reasoning_parser="hermes")


async def test_create_and_go_on(server: Server) -> None:
    async with connected(server) as client:
        first = await client.responses.create(model="tiny", input="one")
        assert first.output_text == "Hello 🎉" and first.status == "completed"
        assert first.usage and first.usage.input_tokens_details.cached_tokens == 0
        second = await client.responses.create(
            model="tiny", input="two", previous_response_id=first.id
        )
        assert second.previous_response_id == first.id
        assert "user\none<|im_end|>\n<|im_start|>assistant\nHello 🎉<|im_end|>" in server.prompt
        assert (await client.responses.retrieve(second.id)).output_text == "Hello 🎉"
        items = [item async for item in client.responses.input_items.list(second.id, limit=1)]
        assert [item.type for item in items] == ["message"]
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(second.id)
        await client.responses.delete(second.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(second.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.create(input="x", previous_response_id=second.id)
        assert caught.value.code == "previous_response_not_found"


async def test_all_is_of_the_types_that_the_client_knows(server: Server) -> None:
    """Parsed once more, strictly: the client itself takes what it gets."""
    server.say(f"<think>\nHm\n</think>\n\nI go. {CALL}")
    async with connected(server) as client:
        made = await client.responses.create(
            input="x", tools=[GO], include=["message.output_text.logprobs"], top_logprobs=1
        )
        type(made).model_validate(made.model_dump(by_alias=True, warnings="error"))
        stream = await client.responses.create(input="x", tools=[GO], stream=True)
        async for event in stream:
            type(event).model_validate(event.model_dump(by_alias=True, warnings="error"))
    assert [item.type for item in made.output] == ["reasoning", "message", "function_call"]


async def test_the_stream_helper(server: Server) -> None:
    server.say(f"<think>\nHm\n</think>\n\nI go. {CALL}")
    said: dict[str, str] = {}
    async with (
        connected(server) as client,
        client.responses.stream(model="tiny", input="x", tools=[GO]) as stream,
    ):
        async for event in stream:
            if event.type in ("response.output_text.delta", "response.reasoning_text.delta"):
                said[event.type] = said.get(event.type, "") + event.delta
        final = await stream.get_final_response()
    assert list(said.values()) == ["Hm", "I go."]
    thought, message, call = final.output
    assert isinstance(thought, ResponseReasoningItem) and thought.content
    assert thought.content[0].text == "Hm" and final.output_text == "I go."
    assert isinstance(call, ResponseFunctionToolCall) and call.arguments == '{"a": 1}'
    assert message.type == "message" and final.status == "completed"


async def test_parse(server: Server) -> None:
    server.say('{"city": "Rome"}')
    async with connected(server) as client:
        made = await client.responses.parse(model="tiny", input="x", text_format=Answer)
        assert made.output_parsed == Answer(city="Rome")
        assert "Paris" in server.scheduler.submits[-1].sampling.grammar
        async with client.responses.stream(model="tiny", input="x", text_format=Answer) as stream:
            parsed = (await stream.get_final_response()).output_parsed
    assert parsed == Answer(city="Rome")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_aborts_and_stores_nothing(folder: Path, streamed: bool) -> None:
    server = endless(folder)
    async with server.listening() as url, httpx.AsyncClient(base_url=url) as client:
        fields = {"input": "x", "stream": streamed, "max_output_tokens": 200}
        with pytest.raises(httpx.ReadTimeout):
            async with client.stream("POST", RESPONSES, json=fields, timeout=0.4) as response:
                async for _ in response.aiter_raw():
                    raise httpx.ReadTimeout("enough")
        await eventually(lambda: len(server.scheduler.aborts) == 1)
        (submit,) = server.scheduler.submits
        id = submit.request_id.rpartition("-")[0]
        assert (await client.get(f"{RESPONSES}/{id}")).status_code == 404
