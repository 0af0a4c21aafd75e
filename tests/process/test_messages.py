"""A tool loop with Anthropic's client on three real processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.checkpoints import tiny_checkpoint
from tests.process.conftest import Server, start

pytestmark = pytest.mark.process
SYSTEM: Any = [{"type": "text", "text": "You are a sailor who answers with the wind. " * 2}]
TOOLS: Any = [
    {
        "name": "look_up",
        "description": "The weather at a place.",
        "input_schema": {
            "type": "object",
            "properties": {"place": {"enum": ["the sea", "the house"]}},
            "required": ["place"],
            "additionalProperties": False,
        },
    }
]


def header(value: int) -> dict[str, str]:
    text = f"x-anthropic-billing-header: cc_version=2.1.197.{value:03x}; cc_entrypoint=cli;"
    return {"type": "text", "text": text}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With room for tools that are told in words."""
    folder: Path = tmp_path_factory.mktemp("tools")
    running = start(tiny_checkpoint(folder, max_position_embeddings=2048))
    yield running
    running.stop()


def test_a_tool_loop_hits_its_first_turn(server: Server) -> None:
    messages: list[Any] = [{"role": "user", "content": "How is the weather by the sea?"}]
    asked: Any = {"model": "tiny", "max_tokens": 120, "tools": TOOLS}
    asked["extra_body"] = {"temperature": 0}
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    with client:
        asked["model"] = client.models.list().data[0].id
        with client.messages.stream(
            **asked,
            system=[header(1), *SYSTEM],
            messages=messages,
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
        ) as stream:
            first = stream.get_final_message()
        assert first.stop_reason == "tool_use"
        (call,) = first.content
        assert call.type == "tool_use" and call.name == "look_up"
        assert call.input in ({"place": "the sea"}, {"place": "the house"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "strong wind"}
        messages += [first.to_param(), {"role": "user", "content": [result]}]
        turn: Any = {"system": [header(2), *SYSTEM], "messages": messages}
        second = client.messages.create(**asked | {"max_tokens": 8}, **turn)
        counted = client.messages.count_tokens(
            model=asked["model"], tools=TOOLS, tool_choice={"type": "auto"}, **turn
        )
    assert second.usage.cache_read_input_tokens is not None
    prompt = second.usage.input_tokens + second.usage.cache_read_input_tokens
    assert counted.input_tokens == prompt
    before = first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0)
    assert second.usage.cache_read_input_tokens >= before - 16, "all but the template's last words"
