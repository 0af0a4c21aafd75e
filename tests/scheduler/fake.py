"""A worker without a model: the K/V of a token is a hash of the K/V before it and of the token.

It reads that K/V through the page table that it was told, so an answer is right only if every page
of the request holds the request's own prefix. Answers are compared with `answer`, which needs no
pages at all.
"""

import hashlib
import random
from collections import deque

from radixserve.cache import check
from radixserve.config import SchedulerConfig
from radixserve.messages import (
    Namespace,
    Rejected,
    Row,
    RunStep,
    Sampling,
    StepDone,
    Submit,
    Tokens,
    WorkerReady,
    pack,
    unpack,
)
from radixserve.scheduler.scheduler import Scheduler

VOCABULARY = 5


def ready(
    num_pages: int = 64, page_size: int = 4, max_rows: int = 4, step_tokens: int = 16
) -> WorkerReady:
    return WorkerReady(
        num_pages=num_pages,
        page_size=page_size,
        max_rows=max_rows,
        step_tokens=max(step_tokens, max_rows - 1 + page_size),
        context_length=10_000,
        vocab_size=VOCABULARY,
        fingerprint="fake",
    )


def absorb(state: bytes, token: int) -> bytes:
    return hashlib.blake2b(state + token.to_bytes(4, "little"), digest_size=8).digest()


def choose(state: bytes) -> int:
    return state[0] % VOCABULARY


def answer(prompt: list[int], max_tokens: int, stop_ids: tuple[int, ...] = ()) -> list[int]:
    """What the fake model answers, computed without pages."""
    state = b""
    for token in prompt:
        state = absorb(state, token)
    out: list[int] = []
    while len(out) < max_tokens and not (out and out[-1] in stop_ids):
        out.append(choose(state))
        state = absorb(state, out[-1])
    return out


class FakeWorker:
    """Runs steps as the messages say, and nothing else."""

    def __init__(self, worker: WorkerReady) -> None:
        self.page_size = worker.page_size
        self.pages: list[list[bytes]] = [[b"?"] * self.page_size for _ in range(worker.num_pages)]
        self.tables: dict[int, list[int]] = {}
        self.last: dict[int, int] = {}
        self.tokens_run = 0

    def run(self, step: RunStep) -> StepDone:
        for slot in step.frees:
            self.tables.pop(slot)
        for admit in step.admits:
            assert admit.slot not in self.tables, "a slot is freed before it is used again"
            self.tables[admit.slot] = []
        assert len({row.slot for row in step.rows}) == len(step.rows), "one row per slot"
        out = [self._row(row) for row in step.rows]
        return StepDone(
            step.step, pack(t for t, row in zip(out, step.rows, strict=True) if row.sample)
        )

    def _row(self, row: Row) -> int:
        table = self.tables[row.slot]
        table += unpack(row.pages)
        tokens = unpack(row.tokens) or [self.last[row.slot]]
        self.tokens_run += len(tokens)
        state = b""
        if row.start:
            at = row.start - 1
            state = self.pages[table[at // self.page_size]][at % self.page_size]
        for at, token in enumerate(tokens, row.start):
            state = absorb(state, token)
            self.pages[table[at // self.page_size]][at % self.page_size] = state
        self.last[row.slot] = choose(state)
        return self.last[row.slot]


class Engine:
    """Scheduler and fake worker, with up to two steps in flight and the laws checked throughout."""

    def __init__(self, worker: WorkerReady, config: SchedulerConfig | None = None) -> None:
        self.scheduler = Scheduler(config or SchedulerConfig(), worker)
        self.worker = FakeWorker(worker)
        self.pending: deque[RunStep] = deque()
        self.answers: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.finished: dict[str, str] = {}
        self.rejected: dict[str, str] = {}
        self.first_step: dict[str, int] = {}
        self.steps: list[RunStep] = []

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int = 1,
        stop_ids: tuple[int, ...] = (),
        salt: str = "",
        priority: int = 0,
    ) -> None:
        self.scheduler.submit(
            Submit(
                request_id,
                0,
                pack(prompt),
                Sampling(seed=0, stop_ids=stop_ids),
                max_tokens,
                Namespace(salt=salt),
                priority,
            )
        )
        self._collect()

    def order(self) -> bool:
        """Order one step ahead, if there is room and work."""
        step = self.scheduler.next_step() if len(self.pending) < 2 else None
        if step is not None:
            self.steps.append(step)
            self.pending.append(step)
        check(self.scheduler.cache)
        return step is not None

    def finish(self) -> bool:
        """Run the oldest ordered step and give back its result."""
        if not self.pending:
            return False
        self.scheduler.done(self.worker.run(self.pending.popleft()))
        self._collect()
        check(self.scheduler.cache)
        return True

    def run(self, limit: int = 10_000) -> None:
        """Until nothing is left to do."""
        for _ in range(limit):
            ordered = self.order() and self.order()
            if not self.finish() and not ordered:
                break
        self._collect()
        assert self.scheduler.idle, "everything submitted has ended"

    def ask(self, prompt: list[int], max_tokens: int = 1, **more: object) -> tuple[list[int], int]:
        """Answer and cached tokens of one request that runs alone."""
        name = f"ask{len(self.cached)}-{random.random()}"
        self.submit(name, prompt, max_tokens, **more)  # type: ignore[arg-type]
        self.run()
        return self.answers[name], self.cached[name]

    def _collect(self) -> None:
        for _, message in self.scheduler.outbox:
            if isinstance(message, Rejected):
                self.rejected[message.request_id] = message.code
                continue
            assert isinstance(message, Tokens)
            name = message.request_id
            assert name not in self.finished, "nothing follows the finish"
            self.first_step.setdefault(name, len(self.steps))
            self.answers.setdefault(name, []).extend(unpack(message.tokens))
            self.cached[name] = message.cached_tokens
            if message.finish:
                self.finished[name] = message.finish
        self.scheduler.outbox.clear()
