"""Steps on a runner: how long one takes, what the host does for it, how long the device idles."""

import time
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from bench.gpu.check import Check
from bench.gpu.served import WARM_STEPS, Served
from radixserve.messages import Row, StepDone
from radixserve.worker.pending import Pending

IN_FLIGHT = 2  # as the scheduler sends them
REPLAYS = 10


@dataclass(frozen=True)
class Decoding:
    """Seconds, and shares of the period."""

    period: float  # from one result to the next
    host: float  # to submit a step
    gap: float  # of the device between the end of a step and the begin of the next
    outside: float | None  # of the period, what a graph of the step does not take; None: no graph


def first_token(check: Check, served: Served, cached: int, total: int) -> float:
    """Median seconds of a step that computes `total - cached` tokens of one request."""
    pages = range(-(-total // served.page_size) + 1)
    seconds = []
    for _ in range(check.sizes.rounds + 2):
        row = served.row(0, cached, total - cached, pages)
        begin = time.perf_counter()
        served.submit([row], admits=[0]).result()
        seconds.append(time.perf_counter() - begin)
        served.submit([], frees=[0]).result()
    return median(seconds[2:])


def decoding(check: Check, served: Served, count: int, context: int, shared: int) -> Decoding:
    """`count` rows that decode together, whose first `shared` tokens are on the same pages."""
    common = shared // served.page_size
    own = (served.room(count, context, shared) - common) // count
    slots = range(count)
    rows = [
        served.row(
            slot, context, 1,
            [*range(common), *range(common + slot * own, common + (slot + 1) * own)],
        )
        for slot in slots
    ]  # fmt: skip
    try:
        served.submit(rows, admits=slots).result()
        steps = Steps(served, count, context + 1)
        steps.run(WARM_STEPS - 1)
        steps.run(check.sizes.steps)
        return _measured(check, served, count, steps)
    finally:
        served.submit([], frees=slots).result()


class Steps:
    """Decoding steps of slots 0, 1, ..., and their times."""

    def __init__(self, served: Served, count: int, start: int) -> None:
        self._served = served
        self._count = count
        self._start = start  # position of the next token of each

    def run(self, steps: int) -> None:
        """Forget what was measured, and run so many, two in flight."""
        self.host: list[float] = []
        self.ends: list[float] = []  # when the host had each result
        self.done: list[StepDone] = []
        self.pending: list[Pending] = []
        flying: deque[Pending] = deque()
        for _ in range(steps):
            rows = [Row(slot, self._start, b"") for slot in range(self._count)]
            self._start += 1
            begin = time.perf_counter()
            flying.append(self._served.submit(rows))
            self.host.append(time.perf_counter() - begin)
            self.pending.append(flying[-1])
            if len(flying) == IN_FLIGHT:
                self._take(flying.popleft())
        while flying:
            self._take(flying.popleft())

    def _take(self, pending: Pending) -> None:
        self.done.append(pending.result())
        self.ends.append(time.perf_counter())


def _measured(check: Check, served: Served, count: int, steps: Steps) -> Decoding:
    period = median(b - a for a, b in pairwise(steps.ends))
    graph = served.runner._forward._graph(count)
    outside = None
    if graph is not None:
        outside = 1 - check.timer.span(graph._replay, REPLAYS) / (period * 1e6)
    return Decoding(period, median(steps.host), _gap(steps, period), outside)


def _gap(steps: Steps, period: float) -> float:
    """By the device's events; without them by what the steps say of themselves."""
    events = [pending._events for pending in steps.pending]
    if not all(events):
        return 1 - median(done.seconds for done in steps.done) / period
    gaps = [float(before[1].elapsed_time(after[0])) for before, after in pairwise(events)]
    return median(gaps) / 1e3 / period
