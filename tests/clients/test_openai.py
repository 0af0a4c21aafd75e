"""openai: the loop as its documentation has it, over both of its surfaces."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.conftest import MODEL, SHORT, Turns, function, package, weather

QUESTION = "How is the weather in Paris?"


@pytest.fixture
def client() -> Iterator[Any]:
    with package("openai").OpenAI(max_retries=0) as client:
        yield client


def test_chat(client: Any, turns: Turns) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    tools: Any = [{"type": "function", "function": function()}]
    asked: Any = {"model": MODEL, "messages": messages, "tools": tools, "temperature": 0}
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    first = client.chat.completions.create(**asked, tool_choice=choice)
    (call,) = first.choices[0].message.tool_calls
    said = weather(**json.loads(call.function.arguments))
    messages += [
        first.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": said},
    ]
    more: Any = {"max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}}
    with client.chat.completions.create(**asked, **more) as stream:
        *_, last = stream
    before, after = turns(2)
    assert last.usage.prompt_tokens_details.cached_tokens == after.cached >= before.prompt


def test_responses(client: Any, turns: Turns) -> None:
    asked: Any = {"model": MODEL, "tools": [{"type": "function", "strict": True, **function()}]}
    first = client.responses.create(
        **asked, input=QUESTION, tool_choice={"type": "function", "name": "weather"}
    )
    (call,) = first.output
    said = weather(**json.loads(call.arguments))
    with client.responses.stream(
        **asked,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": said}],
        extra_body=SHORT,
    ) as stream:
        second = stream.get_final_response()
    assert second.output_text.endswith(".")
    before, after = turns(2)
    assert second.usage.input_tokens_details.cached_tokens == after.cached >= before.prompt
