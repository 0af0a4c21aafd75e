"""anthropic: its tool runner, which calls the function and asks again by itself."""

from tests.clients.conftest import MODEL, City, Turns, package, weather
from tests.process.conftest import Server


def test_the_tool_runner(server: Server, turns: Turns) -> None:
    anthropic = package("anthropic")
    ran: list[str] = []

    @anthropic.beta_tool(name="weather")
    def tool(city: City) -> str:
        """The weather in a city."""
        ran.append(city)
        return weather(city)

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=48,
            tools=[tool],
            tool_choice={"type": "tool", "name": "weather"},
            messages=[{"role": "user", "content": "How is the weather in Paris?"}],
            max_iterations=2,
        )
        first, second = runner
    assert (first.stop_reason, second.stop_reason) == ("tool_use", "tool_use")
    assert len(ran) == 2
    before, after = turns(2, refused=1)  # the offer of a thread, which it goes on without
    assert second.usage.cache_read_input_tokens == after.cached >= before.prompt
