"""A worker without a model: the K/V of a token is a hash of the K/V before it and of the token.

It reads that K/V through the page table that it was told, so an answer is right only if every page
of the request holds the request's own prefix. Answers are compared with `answer`, which needs no
pages at all.
"""

import hashlib
import random
from array import array
from collections import deque

from msgspec.structs import replace

from radixserve.cache import check
from radixserve.config import SchedulerConfig
from radixserve.messages import (
    CacheDirectives,
    Invalidated,
    Namespace,
    Pinned,
    Rejected,
    Row,
    RunStep,
    Sampling,
    Scores,
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


def logprob(state: bytes, token: int) -> float:
    """Of `token` behind the prefix that `state` stands for."""
    return -float(absorb(state, token)[1])


def prompt_logprobs(prompt: list[int], start: int = 0) -> list[float]:
    """What the fake model says of the prompt's tokens from `start` on, computed without pages."""
    state, out = b"", []
    for at, token in enumerate(prompt):
        if at >= max(start, 1):
            out.append(logprob(state, token))
        state = absorb(state, token)
    return out


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
        for row in step.rows:
            self.tables[row.slot] += unpack(row.pages)
        copied = {
            self._copy(row): row.start % self.page_size for row in step.rows if not row.copy_live
        }
        for row in step.rows:
            fresh = self.tables[row.slot][-(-row.start // self.page_size) :]
            if row.copy_from >= 0:
                fresh.append(self.tables[row.slot][row.start // self.page_size])
            for page in fresh:  # what was there before is nobody's to read
                keep = copied.get(page, 0)
                self.pages[page] = self.pages[page][:keep] + [b"?"] * (self.page_size - keep)
        self.scores: list[Scores | None] = []
        out = [self._row(row) for row in step.rows]
        return StepDone(
            step.step,
            pack(t for t, row in zip(out, step.rows, strict=True) if row.sample),
            scores=tuple(self.scores),
        )

    def _copy(self, row: Row) -> int:
        """Carry out the row's copy. Returns the page that was copied to."""
        if row.copy_from < 0:
            return -1
        page, count = self.tables[row.slot][row.start // self.page_size], row.start % self.page_size
        assert count, "a copy is of a part of a page"
        self.pages[page] = self.pages[row.copy_from][:count] + self.pages[page][count:]
        return page

    def _row(self, row: Row) -> int:
        table = self.tables[row.slot]
        if row.copy_live:
            self._copy(row)
        tokens = unpack(row.tokens) or [self.last[row.slot]]
        self.tokens_run += len(tokens)
        state = b""
        if row.start:
            at = row.start - 1
            state = self.pages[table[at // self.page_size]][at % self.page_size]
        states = []
        for at, token in enumerate(tokens, row.start):
            state = absorb(state, token)
            states.append(state)
            self.pages[table[at // self.page_size]][at % self.page_size] = state
        if row.score is not None:
            wanted = unpack(row.score.tokens)
            states = states[row.score.at :]
            found = [logprob(s, t) for s, t in zip(states, wanted, strict=False)]
            assert len(found) == len(wanted), "a row scores what follows its own tokens"
            ranks = pack([1] * len(wanted))
            self.scores.append(Scores(array("f", found).tobytes(), ranks))
        self.last[row.slot] = choose(state)
        return self.last[row.slot]


class Engine:
    """Scheduler and fake worker, with up to two steps in flight and the laws checked throughout."""

    def __init__(self, worker: WorkerReady, config: SchedulerConfig | None = None) -> None:
        self.now = 0.0  # seconds; tests let time pass
        self.scheduler = Scheduler(config or SchedulerConfig(), worker, lambda: self.now)
        self.worker = FakeWorker(worker)
        self.pending: deque[RunStep] = deque()
        self.answers: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.scores: dict[str, list[float]] = {}
        self.finished: dict[str, str] = {}
        self.rejected: dict[str, str] = {}
        self.refusals: dict[str, Rejected] = {}
        self.pinned: dict[str, list[Pinned]] = {}
        self.invalidated: dict[str, int] = {}
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
        tenant: str = "",
        cache: CacheDirectives = CacheDirectives(),  # noqa: B008 - frozen
        **sampling: int,
    ) -> None:
        self.scheduler.submit(
            Submit(
                request_id,
                0,
                pack(prompt),
                Sampling(seed=0, stop_ids=stop_ids, **sampling),
                max_tokens,
                Namespace(salt=salt, tenant=tenant),
                priority,
                cache,
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

    def lose(self) -> None:
        """Run the oldest ordered step; its result says that its rows are lost."""
        result = self.worker.run(self.pending.popleft())
        self.scheduler.done(replace(result, tokens=pack([-1] * len(unpack(result.tokens)))))
        self._collect()

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
                self.refusals[message.request_id] = message
                continue
            if isinstance(message, Pinned):
                assert message.request_id not in self.finished, "pins are answered before the end"
                self.pinned.setdefault(message.request_id, []).append(message)
                continue
            if isinstance(message, Invalidated):
                self.invalidated[message.request_id] = message.tokens
                continue
            assert isinstance(message, Tokens)
            name = message.request_id
            assert name not in self.finished, "nothing follows the finish"
            self.first_step.setdefault(name, len(self.steps))
            if message.scores is not None:
                assert not self.answers.get(name), "the prompt's scores come before the answer"
                assert not message.tokens and not message.finish
                found = array("f", message.scores.logprobs).tolist()
                self.scores.setdefault(name, []).extend(found)
            self.answers.setdefault(name, []).extend(unpack(message.tokens))
            self.cached[name] = message.cached_tokens
            if message.finish:
                self.finished[name] = message.finish
        self.scheduler.outbox.clear()
