"""A small OpenAI-compatible server with a perfect prefix cache over words or ids, on loopback.

It answers `max_tokens` words to everything, streamed. What it is asked is kept in `seen`.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bench.bound import Prefixes, words


class FakeServer(ThreadingHTTPServer):
    """`flaws` change what it does: "no-usage-details", "no-cache", "miscount", "refuse"."""

    daemon_threads = True

    def __init__(self, flaws: set[str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.flaws = flaws
        self.seen: list[dict[str, Any]] = []
        self.finished: list[int] = []  # how many had been asked when each answer ended
        self.prefixes = Prefixes()
        self.lock = threading.Lock()
        self.under_way = self.most_under_way = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def answer(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of one stream."""
        prompt = body.get("messages", body.get("prompt"))
        tokens = words(prompt)
        with self.lock:
            self.seen.append(body)
            cached = 0 if "no-cache" in self.flaws else self.prefixes.add(tokens)
        if "messages" in body:
            yield {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}
        for number in range(body["max_tokens"]):
            text = f"w{number} "
            part = {"delta": {"content": text}} if "messages" in body else {"text": text}
            yield {"choices": [{"index": 0, **part}]}
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
        usage: dict[str, Any] = {
            "prompt_tokens": len(tokens) + 7 * ("miscount" in self.flaws),
            "completion_tokens": body["max_tokens"],
        }
        if "no-usage-details" not in self.flaws:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        yield {"choices": [], "usage": usage}


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""

    def reply(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        assert self.path == "/v1/models", self.path
        self.reply(200, "application/json", b'{"data": [{"id": "fake"}]}')

    def do_POST(self) -> None:
        server = self.server
        with server.lock:
            server.under_way += 1
            server.most_under_way = max(server.most_under_way, server.under_way)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "refuse" in server.flaws:
            self.reply(400, "application/json", b'{"error": {"message": "no"}}')
        else:
            events = [f"data: {json.dumps(event)}\n\n" for event in server.answer(body)]
            self.reply(200, "text/event-stream", "".join([*events, "data: [DONE]\n\n"]).encode())
        with server.lock:
            server.under_way -= 1


@contextmanager
def running(*flaws: str) -> Iterator[FakeServer]:
    server = FakeServer(set(flaws))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
