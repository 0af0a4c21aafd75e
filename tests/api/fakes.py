"""A scheduler without sockets or model: it answers each `Submit` with a script."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import uvicorn
from fastapi import FastAPI

from radixserve.api.app import create_app
from radixserve.api.front import Front
from radixserve.api.http import Http
from radixserve.api.metrics import Metrics
from radixserve.config import Config, ServerConfig, WorkerConfig
from radixserve.messages import (
    Abort,
    Invalidate,
    Invalidated,
    Ready,
    Rejected,
    Scores,
    Stats,
    Submit,
    TokenLogprobs,
    Tokens,
    ToScheduler,
    pack,
    unpack,
)
from radixserve.tokenizer.engine import Engine

READY = Ready(
    context_length=256,
    max_total_tokens=256,
    vocab_size=410,
    page_size=16,
    num_pages=100,
    fingerprint="0123456789abcdef",
)


def stats(**fields: Any) -> Stats:
    """A `Stats` of zeros but for `fields`."""
    zeros: dict[str, Any] = dict.fromkeys(Stats.__struct_fields__, 0) | {"tenants": {}}
    return msgspec.convert(zeros | fields, Stats)


NO_STATS = stats()


class FakeScheduler:
    """Answers with the tokens of `script(submit)`, one message each, `pause` seconds apart.

    A token that is a stop id ends an answer, as does max_tokens; else the last one repeats.
    """

    def __init__(self, script: Callable[[Submit], Sequence[int]]) -> None:
        self.script = script
        self.engine: Engine | None = None
        self.submits: list[Submit] = []
        self.ahead: list[Submit] = []  # those that no client asked for
        self.aborts: list[str] = []
        self.finished: list[str] = []
        self.invalidations: list[Invalidate] = []
        self.invalidated = 48  # tokens, as it says
        self.reject = ""  # a rejection code for the next requests
        self.retry_after = 0.0  # that goes with it
        self.pause = 0.0
        self.aheads_pause = 0.0  # before the answers that no client asked for
        self.score_pause = 0.0  # before each part of a prompt's scores
        self.per_message = 1
        self.cached: Callable[[Submit], int] = lambda _: 0
        self.logprob = -0.5
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def send(self, messages: Sequence[ToScheduler]) -> None:
        for message in messages:
            if isinstance(message, Submit):
                ahead = message.request_id.startswith("ahead")
                (self.ahead if ahead else self.submits).append(message)
                task = asyncio.get_running_loop().create_task(self._answer(message))
                self._tasks[message.request_id] = task
            elif isinstance(message, Abort):
                self.aborts.append(message.request_id)
                self._tasks[message.request_id].cancel()
            elif isinstance(message, Invalidate):
                self.invalidations.append(message)
                loop = asyncio.get_running_loop()
                answer = Invalidated(message.request_id, self.invalidated)
                loop.call_soon(self.engine.deliver, [answer])  # type: ignore[union-attr]

    async def _answer(self, submit: Submit) -> None:
        assert self.engine is not None
        if self.reject:
            refusal = Rejected(submit.request_id, self.reject, "not now", self.retry_after)
            self.engine.deliver([refusal])
            return
        for scores in self._scores(submit):
            await asyncio.sleep(self.score_pause)
            self.engine.deliver(
                [Tokens(submit.request_id, b"", self.cached(submit), "", (), scores)]
            )
        if submit in self.ahead:
            await asyncio.sleep(self.aheads_pause)
        script = list(self.script(submit))
        count = 0
        while True:
            await asyncio.sleep(self.pause)
            tokens: list[int] = []
            finish = ""
            while len(tokens) < self.per_message and not finish:
                tokens.append(script[min(count, len(script) - 1)])
                count += 1
                if count == submit.max_tokens:
                    finish = "length"
                if tokens[-1] in submit.sampling.stop_ids and count > submit.sampling.min_tokens:
                    finish = "stop"
            if finish:
                self.finished.append(submit.request_id)
            self.engine.deliver([self._tokens(submit, tokens, finish)])
            if finish:
                return

    def _tokens(self, submit: Submit, tokens: list[int], finish: str) -> Tokens:
        want = submit.sampling.top_logprobs
        top = tuple((i + 10, float("-inf") if i else -0.1) for i in range(want))
        logprobs = (TokenLogprobs(self.logprob, top),) * len(tokens) if want >= 0 else ()
        return Tokens(submit.request_id, pack(tokens), self.cached(submit), finish, logprobs)

    def _scores(self, submit: Submit) -> list[Scores]:
        """Of the prompt in parts of five tokens: token t has the logprob -t / 8 and the rank t."""
        best, start = submit.sampling.prompt_logprobs, max(submit.sampling.logprob_start, 1)
        wanted = unpack(submit.prompt)[start:] if best >= 0 else []
        return [
            Scores(
                floats(-token / 8 for token in part),
                pack(part),
                pack(10 + i for _ in part for i in range(best)),
                floats(float("-inf") if i else -0.125 for _ in part for i in range(best)),
            )
            for part in (wanted[at : at + 5] for at in range(0, len(wanted), 5))
        ]


def floats(values: Iterable[float]) -> bytes:
    return array("f", values).tobytes()


class Server:
    """A front over a fake scheduler that says `script`: text (then EOS) or token ids."""

    def __init__(self, folder: Path, script: str | list[int] = "Hello", **server: Any) -> None:
        config = Config(
            server=ServerConfig(served_model_name="tiny", **server),
            worker=WorkerConfig(model_path=str(folder)),
        )
        self.scheduler = FakeScheduler(lambda submit: self.script)
        metrics = Metrics()
        self.engine = Engine(self.scheduler.send, metrics)
        self.scheduler.engine = self.engine
        self.front = Front(config, self.engine, metrics)
        self.app: FastAPI = create_app(self.front)
        self.say(script)
        self.engine.deliver([READY, NO_STATS])

    def say(self, script: str | list[int]) -> None:
        vocabulary = self.front.vocabulary
        self.script = (
            [*vocabulary.encode(script, add_special_tokens=False), *vocabulary.eos_ids]
            if isinstance(script, str)
            else script
        )

    @property
    def prompt(self) -> str:
        """The prompt of the last request."""
        ids = unpack(self.scheduler.submits[-1].prompt)
        return b"".join(self.front.vocabulary.token_bytes(i) for i in ids).decode()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """In this process, without a socket. Streams arrive whole."""
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield client

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Over a real socket on loopback; yields the URL."""
        config = uvicorn.Config(self.app, http=Http, port=0, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve())
        for _ in range(200):
            if server.started:
                break
            await asyncio.sleep(0.02)
        try:
            port = server.servers[0].sockets[0].getsockname()[1]
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, 20)
