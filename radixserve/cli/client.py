"""The server as the chat sees it: its model, and answers that stream. Standard library only."""

import http.client
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from radixserve.cli.tree import Piece, Usage

SILENCE = 600.0  # seconds without a word, after which the server is given up

Connection = http.client.HTTPConnection


class Failed(Exception):
    """The server does not do what it was asked; the text is one line for the user."""


class _Details(Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Delta(Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(Struct, frozen=True):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Error(Struct, frozen=True):
    message: str = ""


class _Chunk(Struct, frozen=True):
    """An event of the stream, or the body of an error."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


class _Model(Struct, frozen=True):
    id: str


class _Models(Struct, frozen=True):
    data: list[_Model]


class Client:
    """One server. A connection for each request, so that closing it aborts that request."""

    def __init__(self, url: str, api_key: str = "") -> None:
        """ValueError if `url` is none. It may end in /v1, as OpenAI's clients want it."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is not the URL of a server, as http://127.0.0.1:30000")
        self.url = f"{parts.scheme}://{parts.netloc}"
        secure = parts.scheme == "https"
        self._kind = http.client.HTTPSConnection if secure else Connection
        self._address = (parts.hostname, parts.port)
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def model(self) -> str:
        """The id of the first model that the server has. Failed if it does not tell."""
        with self._answer("GET", "/v1/models") as response:
            models = msgspec.json.decode(response.read(), type=_Models)
            if not models.data:
                raise Failed(f"{self.url} has no model")
            return models.data[0].id

    def stream(self, body: dict[str, Any]) -> Generator[Piece, None, None]:
        """The answer to a chat completion, as it comes. Closing it aborts the request. Failed."""
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = body | {"stream": True, "stream_options": options}
        with self._answer("POST", "/v1/chat/completions", msgspec.json.encode(body)) as response:
            while line := response.readline():
                data = line.strip().removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                if line.startswith(b"data:"):
                    yield _piece(msgspec.json.decode(data, type=_Chunk))
            raise Failed("the server ended the answer in the middle")

    @contextmanager
    def _answer(
        self, method: str, path: str, body: bytes | None = None
    ) -> Generator[http.client.HTTPResponse, None, None]:
        """An answer with status 200, to be read; whatever goes wrong is Failed."""
        connection = self._kind(*self._address, timeout=SILENCE)
        try:
            connection.request(method, self._path + path, body, self._headers)
            response = connection.getresponse()
            with response:  # a connection that the server ends is its own to close
                if response.status != 200:
                    raise Failed(_refusal(response))
                yield response
        except ConnectionRefusedError:
            raise Failed(
                f"nobody listens at {self.url}: start `radixserve serve`, or give --url"
            ) from None
        except TimeoutError:
            raise Failed(f"{self.url} was silent for {SILENCE:.0f} s") from None
        except UnicodeEncodeError:
            raise Failed("the URL or the key has letters that HTTP cannot carry") from None
        except OSError as error:
            raise Failed(f"{self.url}: {error.strerror or error}") from None
        except http.client.HTTPException as error:
            raise Failed(f"{self.url} broke off the connection ({type(error).__name__})") from None
        except msgspec.DecodeError as error:
            raise Failed(f"{self.url} does not speak the protocol: {error}") from None
        finally:
            connection.close()


def _piece(chunk: _Chunk) -> Piece:
    if chunk.error:
        raise Failed(f"the server says: {chunk.error.message}")
    piece = Piece()
    for choice in chunk.choices:
        piece.content += choice.delta.content or ""
        piece.reasoning += choice.delta.reasoning_content or ""
        piece.finish = choice.finish_reason or ""
    if usage := chunk.usage:
        details = usage.prompt_tokens_details or _Details()
        piece.usage = Usage(usage.prompt_tokens, details.cached_tokens, usage.completion_tokens)
    return piece


def _refusal(response: http.client.HTTPResponse) -> str:
    """Why a request is refused: the server's own words if it has some."""
    try:
        error = msgspec.json.decode(response.read(), type=_Chunk).error
    except msgspec.DecodeError:
        error = None
    said = error.message if error else response.reason
    if response.status == 401:
        return f"401: {said}; give --api-key"
    wait = response.headers.get("Retry-After", "")
    return f"{response.status}: {said}" + (f"; try again in {wait} s" if wait else "")
