"""Sending requests and reading streams in tests."""

import json
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
COUNT = "/v1/messages/count_tokens"


def body(route: str, **fields: Any) -> dict[str, Any]:
    """A small request for `route`."""
    messages = {"messages": [{"role": "user", "content": "hi"}]}
    if route in (CHAT, COUNT):
        return messages | fields
    if route == MESSAGES:
        return messages | {"max_tokens": 200} | fields
    return {"input" if route == RESPONSES else "prompt": "hi"} | fields


async def post(client: httpx.AsyncClient, route: str, **fields: Any) -> httpx.Response:
    return await client.post(route, json=body(route, **fields))


async def answer(client: httpx.AsyncClient, route: str, **fields: Any) -> dict[str, Any]:
    response = await post(client, route, **fields)
    assert response.status_code == 200, response.text
    parsed: dict[str, Any] = response.json()
    return parsed


def fault_of(path: str, response: httpx.Response) -> dict[str, Any]:
    """The error that a response tells, in the shape that the path has for it."""
    told: dict[str, Any] = response.json()
    error: dict[str, Any] = told["error"]
    if path == MESSAGES or path.startswith(f"{MESSAGES}/"):
        assert told == {
            "type": "error",
            "error": {key: error[key] for key in ("type", "message", "details") if key in error},
            "request_id": response.headers["x-request-id"],
        }
    else:
        assert told.keys() == {"error"}
        assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


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
