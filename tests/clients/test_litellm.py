"""litellm: a tool loop over chat, the second turn streamed."""

import json
from typing import Any

import pytest

from tests.clients.conftest import MODEL, Turns, function, package, weather

QUESTION = {"role": "user", "content": "How is the weather in Paris?"}


# Of its own types, and of how it reads them.
@pytest.mark.filterwarnings("ignore:.*`ReadOnly` qualifier:UserWarning")
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince211")
def test_chat(turns: Turns) -> None:
    litellm = package("litellm")
    messages: list[Any] = [QUESTION]
    tools: Any = [{"type": "function", "function": function()}]
    asked: Any = {"model": f"openai/{MODEL}", "tools": tools, "max_tokens": 48, "num_retries": 0}
    named = {"type": "function", "function": {"name": "weather"}}
    first = litellm.completion(**asked, messages=messages, tool_choice=named)
    (call,) = first.choices[0].message.tool_calls
    said = weather(**json.loads(call.function.arguments))
    result = {"role": "tool", "tool_call_id": call.id, "content": said}
    messages += [first.choices[0].message, result]
    chunks = list(
        litellm.completion(
            **asked, messages=messages, stream=True, stream_options={"include_usage": True}
        )
    )
    second = litellm.stream_chunk_builder(chunks, messages=messages)
    before, after = turns(2)
    assert second.usage.prompt_tokens_details.cached_tokens == after.cached >= before.prompt
