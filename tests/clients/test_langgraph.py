"""langchain-openai under langgraph: a tool loop, and time travel, where branches hit the trunk."""

from typing import Any

import pytest

from tests.clients.conftest import MODEL, City, Turns, package, place, weather

TRAVEL: Any = {"configurable": {"thread_id": "travel"}, "recursion_limit": 8}


def make_graph(ran: list[str]) -> Any:
    """Ask, run the tool, ask again; the first question of a thread forces the call."""
    graphs, prebuilt = package("langgraph.graph"), package("langgraph.prebuilt")
    tools = package("langchain_core.tools")

    @tools.tool("weather")
    def tool(city: City) -> str:
        """The weather in a city."""
        ran.append(city)
        return weather(city)

    chat = package("langchain_openai").ChatOpenAI(model=MODEL, max_retries=0, max_tokens=32)
    free = chat.bind_tools([tool])
    forced = chat.bind_tools([tool], tool_choice="weather")

    def ask(state: Any) -> Any:
        new = len(state["messages"]) == 1
        return {"messages": [(forced if new else free).invoke(state["messages"])]}

    graph = graphs.StateGraph(graphs.MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", prebuilt.ToolNode([tool]))
    graph.add_edge(graphs.START, "ask")
    graph.add_conditional_edges("ask", prebuilt.tools_condition)
    graph.add_edge("tools", "ask")
    return graph.compile(checkpointer=package("langgraph.checkpoint.memory").InMemorySaver())


def test_time_travel(turns: Turns) -> None:
    ran: list[str] = []
    graph = make_graph(ran)
    asked = {"messages": [("user", "How is the weather in Paris?")]}
    said = graph.invoke(asked, TRAVEL)["messages"]
    assert [message.type for message in said] == ["human", "ai", "tool", "ai"]
    assert len(ran) == 1
    before, after = turns(2)
    assert after.cached >= before.prompt
    assert said[1].usage_metadata["input_tokens"] == before.prompt
    assert said[3].usage_metadata["input_token_details"]["cache_read"] == after.cached

    # Back to where the tool had run, with another result: a branch that leaves the trunk there.
    (fork,) = (s for s in graph.get_state_history(TRAVEL) if len(s.values["messages"]) == 3)
    other = said[2].model_copy(update={"content": "In Paris: snow."})
    branch = graph.update_state(fork.config, {"messages": [other]})
    again = graph.invoke(None, branch)["messages"]
    assert [message.content for message in again[:3]] == [
        *(message.content for message in said[:2]),
        other.content,
    ]
    branched = turns(3)[2]
    assert branched.cached >= after.cached, "the trunk, with the call and the marks of its result"
    assert branched.cached < branched.prompt - 1, "what differs is computed"


@pytest.mark.parametrize("surface", ["chat", "responses"])
def test_a_structured_answer_and_the_next_turn(surface: str, turns: Turns) -> None:
    chat = package("langchain_openai").ChatOpenAI(
        model=MODEL, max_retries=0, max_tokens=32, use_responses_api=surface == "responses"
    )
    messages: list[Any] = [("user", "Where does it rain?")]
    first = chat.with_structured_output(place(), include_raw=True).invoke(messages)
    assert first["parsed"].city in ("Paris", "Oslo")
    second = chat.invoke([*messages, first["raw"], ("user", "And how cold is it?")])
    before, after = turns(2)
    assert second.usage_metadata["input_token_details"]["cache_read"] == after.cached
    assert after.cached >= before.prompt
