"""Responses on three real processes: a stored one is a place in the tree to go on from."""

from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.process.conftest import Server

pytestmark = pytest.mark.process

TEXT = "When a request arrives the tree is walked from its root; " * 2
GO: Any = {
    "type": "function",
    "name": "go",
    "parameters": {
        "type": "object",
        "properties": {"where": {"enum": ["north", "south"]}},
        "required": ["where"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Answer(pydantic.BaseModel):
    city: Literal["Paris", "Berlin"]


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_branches_hit_what_they_go_on_from(server: Server) -> None:
    with client(server) as api:
        first = api.responses.parse(input=TEXT, text_format=Answer, temperature=0)
        assert first.output_parsed is not None and first.usage is not None
        for question in ("Why?", "How?"):
            more = api.responses.create(
                input=question, previous_response_id=first.id, max_output_tokens=1
            )
            assert more.usage is not None
            kept = first.usage.input_tokens + first.usage.output_tokens - 1
            assert more.usage.input_tokens_details.cached_tokens >= kept


def test_a_forced_call_and_its_result(server: Server) -> None:
    with client(server) as api:
        model = api.models.list().data[0].id
        asked: Any = {"model": model, "input": "Go.", "tools": [GO], "tool_choice": "required"}
        asked["parallel_tool_calls"] = False
        whole = api.responses.create(**asked, temperature=0)
        with api.responses.stream(**asked, temperature=0) as stream:
            streamed = stream.get_final_response()
        (call,) = whole.output
        assert call.type == "function_call" and streamed.output[0].type == "function_call"
        assert call.arguments in ('{"where": "north"}', '{"where": "south"}')
        assert streamed.output[0].arguments == call.arguments
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "ok"}
        more = api.responses.create(
            input=[result], tools=[GO], previous_response_id=whole.id, max_output_tokens=2
        )
        assert more.status in ("completed", "incomplete") and more.usage is not None


def test_stream_and_whole_answer_agree(server: Server) -> None:
    with client(server) as api:
        model = api.models.list().data[0].id
        asked: Any = {"model": model, "input": TEXT, "temperature": 0, "max_output_tokens": 24}
        whole = api.responses.create(**asked)
        text = ""
        with api.responses.stream(**asked) as stream:
            for event in stream:
                text += event.delta if event.type == "response.output_text.delta" else ""
    assert event.type in ("response.completed", "response.incomplete")
    assert text == event.response.output_text == whole.output_text != ""
    assert event.response.status == whole.status
