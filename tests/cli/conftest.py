"""A server for the chat that says what the test wants, on loopback."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

DONE = b"data: [DONE]\n\n"


def chunk(content: str = "", **more: Any) -> bytes:
    """One event of a stream. `more`: reasoning_content, finish_reason, usage."""
    usage = more.pop("usage", None)
    finish = more.pop("finish_reason", None)
    choice = {"index": 0, "delta": {"content": content, **more}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], "usage": usage}).encode() + b"\n\n"


def usage(prompt: int, cached: int, answer: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def whole(content: str, **told: int) -> list[bytes]:
    counts = usage(**({"prompt": 10, "cached": 4, "answer": 2} | told))
    return [chunk(content), chunk(finish_reason="stop", usage=counts), DONE]


class FakeServer(ThreadingHTTPServer):
    """`answers`: for each request in turn the pieces of its stream, or (status, headers, body).

    The last one stays. A stream that ends without DONE is broken off; None in it waits until the
    client has left, which sets `left`.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Any] = [whole("Hello!")]
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.waiting = threading.Event()
        self.left = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        assert self.path == "/v1/models"
        self._say(200, {}, b'{"data": [{"id": "fake"}]}')

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        server = self.server
        server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        server.headers.append(dict(self.headers))
        answers = server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, tuple):
            self._say(*answer)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in answer:
            if piece is None:
                self._wait()
                return
            self.wfile.write(piece)

    def _wait(self) -> None:
        self.server.waiting.set()
        self.connection.settimeout(30)
        try:
            gone = self.connection.recv(1) == b""
        except TimeoutError:
            return
        if gone:
            self.server.left.set()

    def _say(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)
