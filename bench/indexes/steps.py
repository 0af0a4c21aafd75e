"""Whole scheduling steps of radixserve over a full tree: running decodes, admissions, a queue."""

import random
import time
from collections import defaultdict

from bench.indexes import shape
from bench.indexes.index import Bench, Index, Samples, clock
from bench.indexes.ours import Ours
from radixserve.config import SchedulerConfig
from radixserve.messages import Namespace, Sampling, StepDone, Submit, WorkerReady, pack
from radixserve.scheduler.garbage import Collector
from radixserve.scheduler.scheduler import Scheduler

PAGE_SIZE = 16
ANSWER = 64  # tokens after which the running rows are replaced
GREEDY = Sampling(seed=0, temperature=0.0)


class Steps:
    """`rows` requests decode; one slot is left for admissions. The tree fills the pool."""

    def __init__(self, order: str, rows: int) -> None:
        self._order, self._rows = order, rows
        self._rng = random.Random(1)
        self._submitted = self._decoded = 0
        self._bench = Bench(self._make, PAGE_SIZE)

    def build(self, groups: int) -> dict[str, float]:
        self._groups = groups
        built = self._bench.build(groups)
        self._collector = Collector(time.monotonic())  # as the scheduler's process does
        self._restart()
        return built

    def _make(self, num_pages: int, page_size: int) -> Index:
        ready = WorkerReady(
            num_pages=num_pages + self._rows * (shape.PATH + PAGE_SIZE + ANSWER) // page_size,
            page_size=page_size,
            max_rows=self._rows + 1,
            step_tokens=8192,
            context_length=1 << 17,
            vocab_size=len(shape.VOCABULARY),
            fingerprint="none",
        )
        config = SchedulerConfig(schedule_policy=self._order, max_queued_requests=1 << 20)
        self._scheduler = Scheduler(config, ready)
        return Ours(self._scheduler.cache, Namespace())

    def measure(self, work: str, count: int, seconds: float, waiting: int = 0) -> Samples:
        """Time `work` ("step", "admission" or "submit") while so many requests wait."""
        samples: Samples = defaultdict(list)
        run = {"step": self._decode, "admission": self._admit, "submit": self._submit}[work]
        if work != "step":
            self._queue(waiting)
        end = time.monotonic() + seconds
        for _ in range(count):
            run(samples)
            if time.monotonic() > end:
                break
        return dict(samples)

    # ---- the work --------------------------------------------------------------------------------

    def _decode(self, samples: Samples) -> None:
        """One step of nothing but decodes. Needs an empty queue."""
        if self._decoded >= ANSWER:
            self._restart()
        samples["step"].append(self._step(self._rows))
        self._decoded += 1

    def _admit(self, samples: Samples) -> None:
        """One step that also admits one request and computes the end of its prompt."""
        if self._decoded >= ANSWER:
            self._restart()
        waiting = len(self._scheduler.waiting)
        self._scheduler.submit(self._message(1))
        samples["admission"].append(self._step(self._rows + 1))
        self._decoded += 1
        assert len(self._scheduler.waiting) == waiting, "one came, one was admitted"

    def _submit(self, samples: Samples) -> None:
        message = self._message(1)
        start = clock()
        self._scheduler.submit(message)
        samples["submit"].append(clock() - start)
        self._scheduler.abort(message.request_id)

    def _step(self, rows: int) -> int:
        """Nanoseconds to order one step and take its result."""
        start = clock()
        step = self._scheduler.next_step()
        ordered = clock()
        assert step is not None and len(step.rows) == rows, "every running request has its row"
        done = StepDone(step.step, pack([7] * sum(row.sample for row in step.rows)))
        resumed = clock()
        self._scheduler.done(done)
        spent = clock() - resumed + ordered - start
        self._scheduler.outbox.clear()
        return spent

    # ---- untimed ---------------------------------------------------------------------------------

    def _restart(self) -> None:
        """Replace all requests: new rows that decode, behind cached prefixes, and as many waiting.

        Those that ran leave their answers in the tree, as in production.
        """
        requests = list(self._scheduler.requests.items())
        waiting = [request.submit for _, request in requests if request.slot < 0]
        for name, _ in requests:
            self._scheduler.abort(name)
        for row in range(self._rows):  # so many tokens longer that pages fill up at all times
            self._scheduler.submit(self._message(1 << 16, row % PAGE_SIZE))
        while self._scheduler.waiting:
            self._run()
        self._run()
        self._decoded = 0
        for message in waiting:
            self._scheduler.submit(message)

    def _run(self) -> None:
        step = self._scheduler.next_step()
        assert step is not None, "requests are running"
        tokens = pack([7] * sum(row.sample for row in step.rows))
        self._scheduler.done(StepDone(step.step, tokens))
        self._scheduler.outbox.clear()

    def _queue(self, waiting: int) -> None:
        """Have so many requests wait, no matter how many did."""
        idle = [name for name, request in self._scheduler.requests.items() if request.slot < 0]
        for name in idle[waiting:]:
            self._scheduler.abort(name)
        for _ in range(waiting - len(idle)):
            self._scheduler.submit(self._message(1))

    def _message(self, max_tokens: int, more: int = 0) -> Submit:
        """A prompt of 2,050 tokens, 2,000 of them cached, and `more`."""
        self._submitted += 1
        group = self._rng.randrange(self._groups)
        shared = shape.prefix(group, self._rng.randrange(shape.BRANCHES))
        own = shape.draw(self._rng.getrandbits(60) | 1 << 60, shape.OWN + more)
        return Submit(
            request_id=str(self._submitted),
            origin=0,
            prompt=(shared + own).tobytes(),
            sampling=GREEDY,
            max_tokens=max_tokens,
            priority=self._rng.randrange(4),
        )
