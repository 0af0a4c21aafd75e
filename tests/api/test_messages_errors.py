"""What goes wrong on the routes of Anthropic's dialect, in its own envelope."""

from pathlib import Path
from typing import Any

import pytest

from radixserve.messages import Stop, Submit
from tests.api.fakes import Server
from tests.api.sending import COUNT, MESSAGES, body, fault_of, post
from tests.api.test_messages import GO, TOOLS, named_events

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(folder: Path) -> Server:
    return Server(folder)


async def test_keys(folder: Path) -> None:
    keys = [{"x-api-key": "k"}, {"authorization": "Bearer k"}]
    both = {"x-api-key": "k", "authorization": "Bearer wrong"}
    wrong = [{}, {"x-api-key": "wrong"}, {"authorization": "k"}, {"x-api-key": ""}]
    async with Server(folder, api_key="k").client() as client:
        for route in (MESSAGES, COUNT):
            for headers in (*keys, both):
                got = await client.post(route, json=body(route), headers=headers)
                assert got.status_code == 200
            for headers in wrong:
                got = await client.post(route, json=body(route), headers=headers)
                assert got.status_code == 401
                assert fault_of(route, got)["type"] == "authentication_error"


async def test_errors(server: Server) -> None:
    async with server.client() as client:
        missing = await post(client, MESSAGES, model="gpt-9")
        assert missing.status_code == 404
        assert fault_of(MESSAGES, missing)["type"] == "not_found_error"
        unknown = await client.get(f"{MESSAGES}/batches")
        assert fault_of(f"{MESSAGES}/batches", unknown)["type"] == "not_found_error"
        assert (await client.get("/v1/messages_of_others")).json().keys() == {"error"}
        server.scheduler.reject, server.scheduler.retry_after = "queue_full", 3
        for streamed in (False, True):
            full = await post(client, MESSAGES, stream=streamed)
            assert (full.status_code, full.headers["retry-after"]) == (503, "3")
            assert fault_of(MESSAGES, full)["type"] == "overloaded_error"
        server.scheduler.reject = "numerical_error"
        broken = await post(client, MESSAGES)
        assert fault_of(MESSAGES, broken)["type"] == "api_error"
        server.front.check_model = lambda name: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        bug = await post(client, MESSAGES)
        assert bug.status_code == 500
        assert fault_of(MESSAGES, bug)["message"] == "internal error of the server"


async def test_too_large(folder: Path) -> None:
    async with Server(folder, max_body_bytes=2000).client() as client:
        got = await client.post(MESSAGES, content=b" " * 2001)
    assert (got.status_code, fault_of(MESSAGES, got)["type"]) == (413, "request_too_large")


async def test_an_error_in_a_stream(server: Server) -> None:
    said = 0

    def cached(_: Submit) -> int:
        nonlocal said
        said += 1
        if said == 5:
            server.engine.deliver([Stop("the worker died")])
        return 0

    server.scheduler.cached = cached
    server.say([70])
    async with server.client() as client:
        got = await post(client, MESSAGES, stream=True)
    *before, last = named_events(got.text)
    assert got.status_code == 200 and before[0]["type"] == "message_start"
    assert last == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "the worker died"},
        "request_id": got.headers["x-request-id"],
    }


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ({"compaction": {"trigger": "now"}}, "compaction"),
    ({"thread": {"type": "create"}}, "thread"),
    ({"thinking": {"type": "deep"}}, "thinking.type"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [GO | {"description": 3}]}, "tools[0].description"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "other"}, "tools": TOOLS}, "other"),
    ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, "tool_choice"),
    ({"system": [{"type": "image"}]}, "system[0] is of type image"),
]


@pytest.mark.parametrize(("fields", "said"), WRONG, ids=lambda value: str(value)[:50])
async def test_what_is_wrong_is_named(server: Server, fields: dict[str, Any], said: str) -> None:
    async with server.client() as client:
        got = await post(client, MESSAGES, **fields)
    assert got.status_code == 400, got.text
    error = fault_of(MESSAGES, got)
    assert error["type"] == "invalid_request_error" and said in error["message"]
    assert not server.scheduler.submits


async def test_nothing_is_served_before_ready(server: Server) -> None:
    server.engine.ready = None
    async with server.client() as client:
        for route in (MESSAGES, COUNT):
            got = await post(client, route)
            assert (got.status_code, got.headers["retry-after"]) == (503, "1")
            assert fault_of(route, got)["type"] == "overloaded_error"


@pytest.mark.parametrize("depth", [400, 460, 480, 490, 2000])
async def test_what_is_nested_deep_breaks_nothing(server: Server, depth: int) -> None:
    deep = '{"properties": {"a": ' * depth + "1" + "}}" * depth
    use = '{"type": "tool_use", "id": "1", "name": "go", "input": DEEP}'
    turns = f'[{{"role": "assistant", "content": [{use}]}}, {{"role": "user", "content": "x"}}]'
    hi = '"messages": [{"role": "user", "content": "hi"}]'
    bodies = [
        f'{{"max_tokens": 9, "messages": {turns}}}',
        f'{{"max_tokens": 9, {hi}, "tools": [{{"name": "go", "input_schema": DEEP}}],'
        ' "tool_choice": {"type": "any"}}',
        f'{{"max_tokens": 9, {hi}, "output_config": {{"format":'
        ' {"type": "json_schema", "schema": DEEP}}}',
    ]
    async with server.client() as client:
        for raw in bodies:
            got = await client.post(MESSAGES, content=raw.replace("DEEP", deep))
            assert got.status_code == 400, "longer than the context, no schema, or nested too deep"
            fault_of(MESSAGES, got)
