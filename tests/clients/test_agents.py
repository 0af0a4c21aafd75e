"""openai-agents: its own loop, over Responses (its default) and over chat."""

import asyncio
from typing import Any

import pytest

from tests.clients.conftest import MODEL, SHORT, City, Turns, package, weather


@pytest.mark.parametrize("surface", ["Responses", "ChatCompletions"])
def test_an_agent(surface: str, turns: Turns) -> None:
    agents, openai = package("agents"), package("openai")
    ran: list[str] = []

    @agents.function_tool(name_override="weather")
    def tool(city: City) -> str:
        """The weather in a city."""
        ran.append(city)
        return weather(city)

    async def run() -> Any:
        async with openai.AsyncOpenAI(max_retries=0) as client:
            agent = agents.Agent(
                name="clerk",
                instructions="You know the weather.",
                tools=[tool],
                model=getattr(agents, f"OpenAI{surface}Model")(MODEL, client),
                # Of the first turn; the agent resets the choice when a tool has run.
                model_settings=agents.ModelSettings(
                    tool_choice="required", parallel_tool_calls=False, extra_body=SHORT
                ),
            )
            return await agents.Runner.run(agent, "How is the weather in Paris?", max_turns=4)

    result = asyncio.run(run())
    assert result.final_output.endswith(".") and len(ran) == 1
    before, after = turns(2)
    usage = result.raw_responses[-1].usage
    assert usage.input_tokens_details.cached_tokens == after.cached >= before.prompt
