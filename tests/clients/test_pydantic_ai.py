"""pydantic-ai: answers that are objects, by a forced tool and by a schema, and the next turn."""

import asyncio
from typing import Any

import pytest

from tests.clients.conftest import MODEL, Turns, package, place


@pytest.mark.parametrize("way", ["tool", "schema"])
def test_a_structured_answer_and_the_next_turn(way: str, turns: Turns) -> None:
    ai, openai = package("pydantic_ai"), package("openai")
    models, providers = map(package, ("pydantic_ai.models.openai", "pydantic_ai.providers.openai"))
    output = place() if way == "tool" else ai.NativeOutput(place())

    async def run() -> tuple[Any, Any]:
        async with openai.AsyncOpenAI(max_retries=0) as client:
            provider = providers.OpenAIProvider(openai_client=client)
            model = models.OpenAIChatModel(MODEL, provider=provider)
            agent = ai.Agent(model, output_type=output, retries=0)
            settings = {"max_tokens": 48}
            first = await agent.run("Where does it rain?", model_settings=settings)
            return first, await agent.run(
                "And where does it snow?",
                message_history=first.all_messages(),
                model_settings=settings,
            )

    first, second = asyncio.run(run())
    assert {first.output.city, second.output.city} <= {"Paris", "Oslo"}
    before, after = turns(2)
    assert second.usage.cache_read_tokens == after.cached >= before.prompt
