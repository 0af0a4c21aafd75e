"""Asking for responses in tests, whole and as streams."""

import json
from typing import Any

import httpx

from tests.api.fakes import Server

RESPONSES = "/v1/responses"
SAME = "same"


async def respond(client: httpx.AsyncClient, given: Any = "hi", **fields: Any) -> dict[str, Any]:
    got = await client.post(RESPONSES, json={"input": given} | fields)
    assert got.status_code == 200, got.text
    parsed: dict[str, Any] = got.json()
    return parsed


async def stream(client: httpx.AsyncClient, given: Any = "hi", **fields: Any) -> list[Any]:
    """The events, each checked to be named as its type and numbered."""
    got = await client.post(RESPONSES, json={"input": given, "stream": True} | fields)
    assert got.status_code == 200, got.text
    assert got.headers["content-type"].startswith("text/event-stream")
    events = []
    for number, block in enumerate(filter(None, got.text.split("\n\n"))):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}" and event["sequence_number"] == number
        events.append(event)
    return events


def types(events: list[Any]) -> list[str]:
    """Types of the events, those of deltas in a row said once."""
    out: list[str] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if not (kind.endswith(".delta") and out and out[-1] == kind):
            out.append(kind)
    return out


def without_chance(value: Any) -> Any:
    """A response with its ids and times made equal, so that two answers can be compared."""
    if isinstance(value, list):
        return [without_chance(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    chance = ("id", "call_id", "created_at", "completed_at")
    return {k: SAME if k in chance and v else without_chance(v) for k, v in value.items()}


def rebuilt(events: list[Any]) -> list[dict[str, Any]]:
    """The output items as a client puts them together from the deltas alone."""
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
        elif kind == "response.content_part.added":
            items[-1]["content"].append(event["part"])
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[event["output_index"]]["id"]
            if kind == "response.function_call_arguments.delta":
                items[-1]["arguments"] += event["delta"]
            else:
                part = items[-1]["content"][event["content_index"]]
                part["text"] += event["delta"]
                part.get("logprobs", []).extend(event.get("logprobs", []))
    return items


def same_but_status(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**item, "status": SAME} for item in items]


async def both(server: Server, said: str, /, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """What a model's text becomes, whole and streamed, both checked to say the same."""
    server.say(said)
    async with server.client() as client:
        whole = await respond(client, **fields)
        events = await stream(client, **fields)
    last = events[-1]["response"]
    assert without_chance(last) == without_chance(whole)
    assert same_but_status(rebuilt(events)) == same_but_status(last["output"])
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == last["output"]
    assert {e["response"]["id"] for e in events if "response" in e} == {last["id"]}
    return whole, events
