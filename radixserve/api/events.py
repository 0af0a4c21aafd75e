"""Server-sent events, and the watch for clients that leave.

A response is worked out only while its client is there: when the connection closes, the work is
cancelled at once, which aborts its requests. A client that stops reading is dropped after a while.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import msgspec
from fastapi import Response
from starlette.types import Receive, Scope, Send

from radixserve.api.errors import EXPECTED, ApiError, as_api_error

log = logging.getLogger(__name__)

T = TypeVar("T")

STALL_SECONDS = 60.0  # a client that takes nothing for so long is dropped
QUIET_SECONDS = 15.0  # after so long without an event the client is told that somebody is there
WAITING = b": waiting\n\n"  # a comment: clients skip it, and their and proxies' clocks begin anew
DONE = b"data: [DONE]\n\n"


def event(content: object, name: str = "") -> bytes:
    """`content`, a Struct or plain data, as one event; with its name if it has one."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(content) + b"\n\n"


def plain_fault(error: ApiError) -> bytes:
    """An error as an event, as OpenAI's streams tell it."""
    return event(error.body)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None if the client leaves first; `work` is then cancelled.

    The request's body must have been read.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer_while_connected(receive: Receive, work: Coroutine[Any, Any, Response]) -> Response:
    """The response that `work` makes; an empty one, which nobody reads, if the client left."""
    return await while_connected(receive, work) or Response(status_code=499)


@asynccontextmanager
async def _begun(work: Awaitable[T]) -> AsyncIterator[asyncio.Future[T]]:
    """`work` while it goes on; it is cancelled at the end."""
    future = asyncio.ensure_future(work)
    try:
        yield future
    finally:
        future.cancel()
        await asyncio.gather(future, return_exceptions=True)


class EventStream(Response):
    """Sends what an async generator yields. Its work begins when the response does.

    The headers wait for the first event, so an error before it is answered with its own status.
    Where a long prompt keeps that waiting, they are sent with comments, one each QUIET_SECONDS. An
    error after the headers becomes an event, made by `fault`, and the stream ends with it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        fault: Callable[[ApiError], bytes] = plain_fault,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._fault = fault

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events, _begun(anext(events)) as first:
            await asyncio.wait((first,), timeout=QUIET_SECONDS)
            if first.done():
                first.result()  # an error still has its own status
            try:
                await self._start(send)
                while not first.done():
                    await self._send(send, WAITING)
                    await asyncio.wait((first,), timeout=QUIET_SECONDS)
                await self._send(send, first.result())
                async for data in events:
                    await self._send(send, data)
            except TimeoutError:
                log.warning("dropping a client that has read nothing for %.0f s", STALL_SECONDS)
                return
            except Exception as error:
                if not isinstance(error, EXPECTED):
                    log.exception("a stream failed")
                await self._send(send, self._fault(as_api_error(error)))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )

    @staticmethod
    async def _send(send: Send, data: bytes) -> None:
        async with asyncio.timeout(STALL_SECONDS):
            await send({"type": "http.response.body", "body": data, "more_body": True})
