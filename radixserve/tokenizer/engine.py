"""The client of the scheduler inside the tokenizer process.

Sends `Submit`s, hands arriving `Tokens` to whoever waits for them, and sends exactly one `Abort`
for each request whose consumer leaves before its end. Knows no text and no HTTP; runs on one event
loop. How messages travel is the caller's: it gives `send` and calls `deliver`.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from radixserve.messages import (
    INT32_BYTES,
    Abort,
    Drain,
    Invalidate,
    Invalidated,
    Pinned,
    Ready,
    Rejected,
    Stats,
    Stop,
    Submit,
    Tokens,
    ToScheduler,
    ToTokenizer,
)

HEARTBEAT_SECONDS = 10.0  # without `Stats` for so long, the scheduler is taken for dead
STEP_SECONDS = 120.0  # a step that takes so long, the worker is taken for stuck
AWAY_SECONDS = 5.0  # after a server that ends, the next one should be there; a guess


class RequestRejected(Exception):
    """The scheduler does not run a request; `code` is one of REJECTIONS.

    `retry_after`: seconds after which trying again makes sense; 0: it does not.
    """

    def __init__(self, code: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


class EngineStopped(Exception):
    """There is no engine any more, or soon; the text says why.

    `retry_after`: seconds after which trying again makes sense; 0: nobody knows.
    """

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Observer(Protocol):
    """Told what happens to requests, as it is delivered, however slowly it is read."""

    def first_tokens(self, seconds: float, prompt: int, cached: int) -> None:
        """A request's first tokens came `seconds` after `Submit`; `cached` of its prompt hit."""

    def more_tokens(self, seconds: float, count: int) -> None:
        """`count` tokens came `seconds` after those before them."""

    def generated(self, count: int) -> None:
        """`count` tokens came, first or not."""

    def finished(self, seconds: float, reason: str) -> None:
        """A request ended `seconds` after `Submit`: stop, length, abort, error or a rejection."""


class _Request:
    """One submitted request without an end yet."""

    __slots__ = (
        "cached",
        "index",
        "last",
        "pins",
        "prompt_tokens",
        "request_id",
        "start",
        "stream",
    )

    def __init__(self, stream: "Stream", index: int, submit: Submit, now: float) -> None:
        self.stream = stream
        self.index = index
        self.request_id = submit.request_id
        self.prompt_tokens = len(submit.prompt) // INT32_BYTES
        self.start = now
        self.last = 0.0  # when tokens came last; 0: none yet
        self.cached = 0  # prompt tokens that hit, as last heard
        self.pins: list[Pinned] = []  # what became of its pins, as far as heard


class Stream:
    """The answers to a group of requests, for one consumer: `async for index, tokens in stream`.

    Use it as a context manager: leaving it aborts what has not ended. What waits in it when the
    consumer stalls is bounded by the requests' max_tokens.
    """

    def __init__(
        self,
        engine: "Engine",
        submits: Sequence[Submit],
        now: float,
        *,
        names: Collection[str],
        observer: Observer,
        needed: bool,
    ) -> None:
        self._engine = engine
        self.names = frozenset(names)
        self.observer = observer
        self.needed = needed
        self._queue: asyncio.Queue[tuple[int, Tokens] | Exception] = asyncio.Queue()
        self._unread = set(range(len(submits)))  # indices whose end has not been read yet
        self.requests = [_Request(self, i, submit, now) for i, submit in enumerate(submits)]

    def put(self, item: tuple[int, Tokens] | Exception) -> None:
        self._queue.put_nowait(item)

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> tuple[int, Tokens]:
        """Raises RequestRejected if one of the requests is not run, EngineStopped at the end."""
        while self._unread:
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            index, tokens = item
            if index not in self._unread:
                continue  # came after `finish`
            if tokens.finish:
                self._unread.discard(index)
            return item
        raise StopAsyncIteration

    def pins(self, index: int) -> Sequence[Pinned]:
        """What became of the pins of request `index`; all are answered before its last tokens."""
        return self.requests[index].pins

    def finish(self, index: int) -> None:
        """The consumer has all it wants of answer `index` (a stop string came)."""
        self._unread.discard(index)
        self._engine.drop([self.requests[index]], "stop")

    def close(self) -> None:
        self._unread.clear()
        self._engine.drop(self.requests, "abort")
        self._engine.left(self)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Engine:
    """The state of the scheduler as last heard, and the requests that run there."""

    def __init__(
        self,
        send: Callable[[Sequence[ToScheduler]], None],
        observer: Observer,
        *,
        origin: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._observer = observer
        self._clock = clock
        self._requests: dict[str, _Request] = {}
        self._streams: set[Stream] = set()  # whose consumers have not left
        self._invalidations: dict[str, asyncio.Future[Invalidated]] = {}
        self._heartbeat = 0.0
        self.origin = origin
        self.ready: Ready | None = None
        self.stats: Stats | None = None
        self.draining = ""  # why no new requests are taken
        self.stopped = ""  # why there is no engine any more

    @property
    def unfinished(self) -> int:
        """Requests that were submitted here and have no end yet."""
        return len(self._requests)

    def submit(
        self,
        submits: Sequence[Submit],
        names: Collection[str] = (),
        observer: Observer | None = None,
        needed: bool = True,
    ) -> Stream:
        """Send the requests; their answers come in the stream. EngineStopped if it is too late.

        `names`: what else `abort` may call the group by. `observer`: of these, not the engine's.
        Those that are not `needed` end when no new requests are taken any more.
        """
        if self.stopped:
            raise EngineStopped(self.stopped)
        if self.draining:
            raise EngineStopped(self.draining, AWAY_SECONDS)
        observer = observer or self._observer
        stream = Stream(self, submits, self._clock(), names=names, observer=observer, needed=needed)
        self._requests |= {request.request_id: request for request in stream.requests}
        self._streams.add(stream)
        self._send(submits)
        return stream

    async def invalidate(self, order: Invalidate) -> Invalidated:
        """Send the order; returns when it was carried out. EngineStopped if there is no engine."""
        if self.stopped:
            raise EngineStopped(self.stopped)
        answer = self._invalidations[order.request_id] = asyncio.Future()
        try:
            self._send([order])
            return await answer
        finally:
            del self._invalidations[order.request_id]

    def abort(self, name: str | None) -> int:
        """End the requests of that id or group name, all if it is None. Returns how many.

        Their consumers get what has come so far, and "abort" as the finish.
        """
        return self._abort(
            request
            for request in self._requests.values()
            if name in (None, request.request_id) or name in request.stream.names
        )

    def _abort(self, requests: Iterable[_Request]) -> int:
        chosen = [*requests]
        self.drop(chosen, "abort")
        for request in chosen:
            last = Tokens(request.request_id, b"", request.cached, "abort")
            request.stream.put((request.index, last))
        return len(chosen)

    def drop(self, requests: Iterable[_Request], reason: str) -> None:
        """Abort those of `requests` that have not ended. Idempotent."""
        ended = [r for r in requests if self._requests.pop(r.request_id, None) is not None]
        if not ended:
            return
        self._send([Abort(r.request_id) for r in ended])
        for request in ended:
            request.stream.observer.finished(self._clock() - request.start, reason)

    def left(self, stream: Stream) -> None:
        """The consumer of `stream` needs it no more. Idempotent."""
        self._streams.discard(stream)

    @property
    def drained(self) -> bool:
        """Whether new requests are refused and all others were answered to their consumers."""
        return bool(self.draining) and not self._streams

    def deliver(self, messages: Iterable[ToTokenizer]) -> None:
        """Take in what arrived from the scheduler or the launcher."""
        for message in messages:
            match message:
                case Tokens():
                    self._deliver_tokens(message)
                case Rejected():
                    self._reject(message)
                case Pinned() if request := self._requests.get(message.request_id):
                    request.pins.append(message)
                case Invalidated():
                    self._deliver_invalidated(message)
                case Stats():
                    self.stats = message
                    self._heartbeat = self._clock()
                case Ready():
                    self.ready = message
                    self._heartbeat = self._clock()
                case Drain():
                    self.draining = "the server is shutting down: it takes no new requests"
                    self._abort(r for r in self._requests.values() if not r.stream.needed)
                case Stop():
                    self.stop(message.reason)

    def _deliver_tokens(self, message: Tokens) -> None:
        request = self._requests.get(message.request_id)
        if request is None:
            return  # aborted here while the tokens were under way
        now, count = self._clock(), len(message.tokens) // INT32_BYTES
        observer = request.stream.observer
        request.cached = message.cached_tokens
        if count:
            observer.generated(count)
            if request.last:
                observer.more_tokens(now - request.last, count)
            else:
                seconds = now - request.start
                observer.first_tokens(seconds, request.prompt_tokens, message.cached_tokens)
            request.last = now
        if message.finish:
            del self._requests[message.request_id]
            observer.finished(now - request.start, message.finish)
        request.stream.put((request.index, message))

    def _deliver_invalidated(self, message: Invalidated) -> None:
        answer = self._invalidations.get(message.request_id)
        if answer and not answer.done():  # else nobody waits any more: cancelled
            answer.set_result(message)

    def _reject(self, message: Rejected) -> None:
        request = self._requests.pop(message.request_id, None)
        if request is not None:
            request.stream.observer.finished(self._clock() - request.start, message.code)
            request.stream.put(RequestRejected(message.code, message.message, message.retry_after))

    def stop(self, reason: str) -> None:
        """The engine is gone: every open stream ends with EngineStopped. Idempotent."""
        self.stopped = self.stopped or reason or "the server is shutting down"
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.stream.observer.finished(self._clock() - request.start, "error")
            request.stream.put(EngineStopped(self.stopped))
        for answer in self._invalidations.values():
            if not answer.done():
                answer.set_exception(EngineStopped(self.stopped))

    def trouble(self) -> str:
        """Why no request can be served now; "" when all is well."""
        if self.stopped or self.draining:
            return self.stopped or self.draining
        if self.ready is None:
            return "the engine is starting"
        silence = self._clock() - self._heartbeat
        if silence > HEARTBEAT_SECONDS:
            return f"the scheduler has been silent for {silence:.0f} s"
        if self.stats and self.stats.waiting_on_step > STEP_SECONDS:
            return f"the worker has been busy with one step for {self.stats.waiting_on_step:.0f} s"
        return ""
