"""scripts/test-clients: what its proxy adds and reads, and that a client which fails is seen."""

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from test_clients.agents import AGENTS, CHAT, MADE, MESSAGES, RESPONSES, Agent
from test_clients.command import Run, run

TOOLS: dict[str, Any] = {
    CHAT: {"type": "function", "function": {"name": "go"}},
    MESSAGES: {"name": "go", "input_schema": {}},
    RESPONSES: {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "go"}]},
}
CLIENT = """
import json, sys, urllib.request
for body in json.loads(sys.argv[2]):
    asked = urllib.request.Request(sys.argv[1], json.dumps(body).encode())
    urllib.request.urlopen(asked).read()
open("made.txt", "w").write(sys.argv[3])
"""


def told(surface: str, cached: int) -> str:
    """The end of an answer to a prompt of 100 tokens."""
    if surface == MESSAGES:
        usage = {"input_tokens": 100 - cached, "cache_read_input_tokens": cached}
        said: Any = {"type": "message_start", "message": {"usage": usage}}
    elif surface == CHAT:
        usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": cached}}
        said = {"usage": usage}
    else:
        usage = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": cached}}
        said = {"response": {"usage": usage}}
    return f"event: x\ndata: {json.dumps(said)}\n\ndata: [DONE]\n\n"


@contextmanager
def fake_server(cached: list[int], seen: list[Any]) -> Iterator[str]:
    """Answers one request after the other with so many cached tokens."""

    async def answer(request: Request) -> PlainTextResponse:
        seen.append(await request.json())
        return PlainTextResponse(told(request.url.path, cached[len(seen) - 1]))

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        deadline = time.monotonic() + 10
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


def visit(
    folder: Path, surface: str, cached: list[int], text: str = "hello\n"
) -> tuple[Run, list[Any], list[Any]]:
    """A title request, the first turn and the second; what was sent and what arrived."""
    packages = folder / "packages"
    (packages / "node_modules" / "x").mkdir(parents=True)
    (packages / "node_modules" / "x" / "package.json").write_text('{"version": "1.2.3"}')
    plain = {"messages": ["title"]}
    bodies = [plain, *({"n": n, "tools": [TOOLS[surface]]} for n in (1, 2))]
    name = "a.go" if surface == RESPONSES else "go"
    url = "{url}" + surface
    command = (sys.executable, "-c", CLIENT, url, json.dumps(bodies), text)
    seen: list[Any] = []
    with fake_server(cached, seen) as server:
        agent = Agent("X", "x", surface, name, {"to": "x"}, command)
        return run(agent, packages, server, folder / "run"), bodies, seen


@pytest.mark.parametrize("surface", [CHAT, MESSAGES, RESPONSES])
def test_a_field_is_added_and_the_tokens_are_read(tmp_path: Path, surface: str) -> None:
    found, sent, arrived = visit(tmp_path, surface, [0, 7, 90])
    added = [body.pop("structured_outputs") for body in arrived]
    assert arrived == sent
    assert [list(each) for each in added] == [["regex"], ["choice"], ["regex"]]
    call = json.loads(
        added[1]["choice"][0].removeprefix("<tool_call>").removesuffix("</tool_call>")
    )
    assert call == {"name": found.agent.tool, "arguments": {"to": "x"}}
    assert found.passed
    assert found.row() == ("X 1.2.3", f"`{surface}`", "0", "yes", "100", "100", "90")


@pytest.mark.parametrize(("cached", "text"), [([0, 0, 89], "hello"), ([0, 0, 90], "nothing")])
def test_a_failure_is_one(tmp_path: Path, cached: list[int], text: str) -> None:
    found, _, _ = visit(tmp_path, CHAT, cached, text)
    assert found.code == 0 and not found.passed


def test_a_client_that_breaks_off_has_failed(tmp_path: Path) -> None:
    found, _, _ = visit(tmp_path, CHAT, [0])
    assert found.code == 1 and not found.made and not found.passed


def test_the_releases_are_those_that_are_run() -> None:
    packages = Path(__file__).parents[2] / "scripts" / "test_clients" / "npm" / "package.json"
    pinned = json.loads(packages.read_text())["dependencies"]
    assert {agent.package for agent in AGENTS} <= pinned.keys()
    assert all(version[0].isdigit() for version in pinned.values())
    assert all(MADE in json.dumps(dict(agent.arguments)) for agent in AGENTS)
