"""Sending requests and reading streams in tests."""

import json
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def body(route: str, **fields: Any) -> dict[str, Any]:
    """A small request for `route`."""
    if route == CHAT:
        return {"messages": [{"role": "user", "content": "hi"}]} | fields
    return {"prompt": "hi"} | fields


async def post(client: httpx.AsyncClient, route: str, **fields: Any) -> httpx.Response:
    return await client.post(route, json=body(route, **fields))


async def answer(client: httpx.AsyncClient, route: str, **fields: Any) -> dict[str, Any]:
    response = await post(client, route, **fields)
    assert response.status_code == 200, response.text
    parsed: dict[str, Any] = response.json()
    return parsed


def events(text: str) -> list[Any]:
    """The events of a stream, parsed; "[DONE]" as itself."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def stream(client: httpx.AsyncClient, route: str, **fields: Any) -> list[Any]:
    response = await post(client, route, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response.text)


def text_of(chunks: list[Any], index: int = 0) -> str:
    """What a stream's chunks say in choice `index`."""
    out = ""
    for chunk in chunks[:-1]:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                out += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return out


def finish_of(chunks: list[Any], index: int = 0) -> list[str]:
    choices = [c for chunk in chunks[:-1] for c in chunk["choices"] if c["index"] == index]
    return [c["finish_reason"] for c in choices if c["finish_reason"]]
