"""One streamed request to an OpenAI-compatible server, timed.

Used by bench/serve.py and bench/ttft.py. Speaks plain HTTP with httpx, so that no client library's
own work is measured.
"""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

TIMEOUT = httpx.Timeout(30, read=600)


@dataclass
class Outcome:
    """What came back for one request. Times in seconds; token counts as the server reports them."""

    sent_at: float  # time.perf_counter()
    first_at: float = 0.0  # first token; 0: none came
    done_at: float = 0.0  # end of the stream; 0: it failed or was not waited for
    text: str = ""  # of the first choice
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None  # None: the server does not report it
    error: str = ""
    finishes: list[str] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.first_at - self.sent_at

    @property
    def itl(self) -> float | None:
        """Mean time between tokens; None for fewer than two. Servers may send several at once."""
        if self.completion_tokens < 2 or not self.done_at:
            return None
        return (self.done_at - self.first_at) / (self.completion_tokens - 1)

    def take(self, chunk: dict[str, Any]) -> None:
        """One event of the stream."""
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or choice
            text = delta.get("text") or delta.get("content") or ""
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            if not self.first_at and (text or thought or choice.get("finish_reason")):
                self.first_at = time.perf_counter()
            if not choice.get("index"):
                self.text += text
            if choice.get("finish_reason"):
                self.finishes.append(choice["finish_reason"])
        if usage := chunk.get("usage"):
            self.prompt_tokens = usage.get("prompt_tokens") or 0
            self.completion_tokens = usage.get("completion_tokens") or 0
            details = usage.get("prompt_tokens_details") or {}
            self.cached_tokens = details.get("cached_tokens")
        if failure := chunk.get("error"):
            raise ValueError(failure.get("message") if isinstance(failure, dict) else failure)


def body_of(
    model: str, prompt: str | list[int] | list[dict[str, str]], max_tokens: int
) -> tuple[str, dict[str, Any]]:
    """Path and JSON body: a list of messages is a chat, text or token ids a completion."""
    chat = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], dict)
    body = {
        "model": model,
        "messages" if chat else "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return ("/chat/completions" if chat else "/completions"), body


async def send(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Outcome:
    """Sends and reads to the end. What goes wrong is in the outcome's `error`; never raises it."""
    outcome = Outcome(sent_at=time.perf_counter())
    try:
        async with client.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                detail = (await answer.aread()).decode(errors="replace")
                raise ValueError(f"HTTP {answer.status_code}: {detail[:300]}")
            async for line in answer.aiter_lines():
                if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
                    outcome.take(json.loads(data))
        if not outcome.first_at:
            raise ValueError("the stream ended without a token")
        outcome.done_at = time.perf_counter()
    except (httpx.HTTPError, ValueError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    return outcome


def connect(base_url: str, api_key: str, connections: int) -> httpx.AsyncClient:
    """A client for `base_url`, which ends in /v1."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx.AsyncClient(
        base_url=base_url, headers=headers, limits=limits, timeout=TIMEOUT, trust_env=False
    )


async def first_model(client: httpx.AsyncClient) -> str:
    """The id of the first model that the server lists."""
    answer = await client.get("/models")
    answer.raise_for_status()
    name: str = answer.json()["data"][0]["id"]
    return name
