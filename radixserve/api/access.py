"""One line in the log for each request, and its id: the client's X-Request-Id, or one made here.

The line tells lengths and times, never what was said.
"""

import logging
import re
import secrets
import time
from urllib.parse import quote

from fastapi import Request
from msgspec import Struct
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

HEADER = "x-request-id"
KEY = "radixserve.record"  # of the record in the scope of its request
USABLE = re.compile(r"[!-~]{1,128}")  # ids that are taken: printable, without spaces
SHOWN_PATH = 200  # characters
LEFT = 499  # logged for a client that left before it was answered


class Record(Struct):
    """What is to be told of one request; who works on it fills it in."""

    id: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    status: int = LEFT


def record_of(request: Request) -> Record:
    """The record of a request that came through `AccessLog`."""
    record = request.scope[KEY]
    assert isinstance(record, Record)
    return record


class AccessLog:
    """ASGI middleware, the outermost one of the application's own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        record = scope[KEY] = Record(_id(Headers(scope=scope).get(HEADER, "")))
        began = time.monotonic()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)[HEADER] = record.id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            record.status = 500
            raise
        finally:
            _tell(scope, record, time.monotonic() - began)


def _id(wanted: str) -> str:
    return wanted if USABLE.fullmatch(wanted) else f"req-{secrets.token_hex(12)}"


def _tell(scope: Scope, record: Record, seconds: float) -> None:
    log.info(
        "%s %s %d %.0f ms, %d prompt tokens, %d cached, %s",
        scope["method"],
        quote(scope["path"], errors="replace")[:SHOWN_PATH],
        record.status,
        seconds * 1000,
        record.prompt_tokens,
        record.cached_tokens,
        record.id,
    )
