"""What stands between a client and the server: it says what the answer must be, and listens.

Nothing but the field `structured_outputs` is added to a request, so the prompts are the client's.
"""

import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from radixserve.api.events import while_connected
from test_clients.agents import CHAT, MESSAGES, PATIENCE, RESPONSES, Agent

SENTENCE = "[A-Z][a-z]{1,12}( [a-z]{1,12}){0,6}\\."  # in place of a small model's endless answer
DROPPED = ("host", "content-length", "transfer-encoding", "connection", "accept-encoding")


@dataclass
class Turn:
    """One request for an answer. Tokens are -1 until the answer has told them."""

    offers: bool  # whether the client offers the tool in it
    prompt: int = -1
    cached: int = -1


@dataclass
class Proxy:
    """Forces the first request of `agent` that offers its tool to call it. Keeps all in `kept`."""

    agent: Agent
    target: str
    kept: Path
    turns: list[Turn] = field(default_factory=list)

    def loop(self) -> list[Turn]:
        """The turns of the tool loop: title requests and the like are left out."""
        return [turn for turn in self.turns if turn.offers]

    async def handle(self, request: Request) -> Response:
        body = await request.body()
        turn = None
        if request.method == "POST" and request.url.path in (CHAT, MESSAGES, RESPONSES):
            fields = json.loads(body)
            turn = self._constrain(fields)
            body = json.dumps(fields).encode()
            (self.kept / f"request-{len(self.turns)}.json").write_bytes(body)
        url = f"{self.target}{request.url.path}?{request.url.query}"
        headers = [(k, v) for k, v in request.headers.items() if k not in DROPPED]
        client: httpx.AsyncClient = request.app.state.client
        asked = client.build_request(request.method, url, headers=headers, content=body)
        answer = await while_connected(request.receive, client.send(asked, stream=True))
        if answer is None:
            return Response(status_code=499)
        told = {k: v for k, v in answer.headers.items() if k not in DROPPED}
        return StreamingResponse(self._relay(answer, turn), answer.status_code, told)

    def _constrain(self, fields: dict[str, Any]) -> Turn:
        turn = Turn(self.agent.tool in set(_names(fields.get("tools") or ())))
        force = turn.offers and not self.loop()
        fields["structured_outputs"] = {"choice": [self._call()]} if force else {"regex": SENTENCE}
        self.turns.append(turn)
        return turn

    def _call(self) -> str:
        """The call as the model writes it, in the Hermes form."""
        called = {"name": self.agent.tool, "arguments": dict(self.agent.arguments)}
        return f"<tool_call>\n{json.dumps(called)}\n</tool_call>"

    async def _relay(self, answer: httpx.Response, turn: Turn | None) -> AsyncIterator[bytes]:
        seen = b""
        try:
            async for piece in answer.aiter_bytes():
                seen += piece if turn else b""
                yield piece
        finally:  # a client may leave when it has the last event
            await answer.aclose()
            if turn:
                self._note(turn, seen)

    def _note(self, turn: Turn, seen: bytes) -> None:
        (self.kept / f"answer-{self.turns.index(turn) + 1}.txt").write_bytes(seen)
        with suppress(ValueError):  # the last line of an answer that was broken off
            for usage in _usages(seen.decode(errors="replace")):
                turn.prompt, turn.cached = usage


def _names(tools: Iterable[Any]) -> Iterator[str]:
    """As the model says them, whichever dialect describes them."""
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from (f"{tool['name']}.{name}" for name in _names(tool["tools"]))
        else:
            yield tool.get("function", tool).get("name", "")


def _usages(text: str) -> Iterator[tuple[int, int]]:
    """Prompt tokens and cached ones, each time that an answer tells them; the last are final."""
    for line in text.splitlines():
        line = line.removeprefix("data: ")
        if not line.startswith("{"):
            continue
        said = json.loads(line)
        for holder in (said, said.get("message"), said.get("response")):
            usage = holder.get("usage") if isinstance(holder, Mapping) else None
            if usage:
                yield _tokens(usage)


def _tokens(usage: Mapping[str, Any]) -> tuple[int, int]:
    if "cache_read_input_tokens" in usage:  # Anthropic's input_tokens are those not cached
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, cached
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    return usage.get("prompt_tokens", usage.get("input_tokens")), details["cached_tokens"]


@asynccontextmanager
async def _connected(app: Starlette) -> AsyncIterator[None]:
    async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as app.state.client:
        yield


@contextmanager
def listening(proxy: Proxy) -> Iterator[str]:
    """The proxy's URL while it listens."""
    methods = ["GET", "HEAD", "POST", "DELETE"]
    routes = [Route("/{path:path}", proxy.handle, methods=methods)]
    app = Starlette(routes=routes, lifespan=_connected)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 30
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.02)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
