"""One run: clients, the real scheduler and cache, a simulated worker, a virtual clock.

Like the scheduler's process it takes what has come, orders up to `STEPS_AHEAD` steps, and tells the
clients what came out; messages take no time. Real time is read only to say what the scheduler
costs.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import ParamSpec, TypeVar

from radixserve.config import SchedulerConfig
from radixserve.messages import Rejected, RunStep, Sampling, StepDone, Submit, Tokens, WorkerReady
from radixserve.scheduler.scheduler import Scheduler
from radixserve.simulate.clients import Clients, Load
from radixserve.simulate.tokens import Call, Encoder
from radixserve.simulate.worker import Cost, Worker
from radixserve.simulate.workloads import Recorded

P = ParamSpec("P")
T = TypeVar("T")

STEPS_AHEAD = 2  # as scheduler/process.py, which this room cannot import: it opens sockets


@dataclass(slots=True)
class Outcome:
    """What became of all requests. Times in seconds of the virtual clock, one per request."""

    prompt_tokens: int = 0  # of finished requests, as the three below
    cached_tokens: int = 0
    output_tokens: int = 0
    finished: int = 0
    rejected: set[str] = field(default_factory=set)  # names of calls
    waiting: list[float] = field(default_factory=list)  # submission to first admission
    ttft: list[float] = field(default_factory=list)  # submission to first token
    admitted: list[str] = field(default_factory=list)  # names in the order of first admission
    seconds: float = 0.0
    scheduler_seconds: float = 0.0  # real ones, spent in the scheduler's code


@dataclass(slots=True)
class _Open:
    """A call that is not finished."""

    call: Call
    request: Recorded
    submitted: float
    admitted: bool = False
    first: bool = False  # the first token is there


class Simulation:
    """Plays a workload once. `progress` is called whenever a request is finished."""

    def __init__(
        self,
        requests: Sequence[Recorded],
        encoder: Encoder,
        load: Load,
        scheduler: SchedulerConfig,
        ready: WorkerReady,
        cost: Cost,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(scheduler, ready, clock=lambda: self.now)
        self.outcome = Outcome()
        self._clients = Clients(requests, load)
        self._encoder = encoder
        self._worker = Worker(cost)
        self._progress = progress
        self._open: dict[str, _Open] = {}
        self._samples: dict[int, int] = {}  # request -> its calls that are not finished
        self._running: deque[tuple[float, StepDone]] = deque()  # (when it is done, result)

    def run(self) -> Outcome:
        """Until every request is answered."""
        while True:
            self._submit()
            self._order()
            self._tell()
            step = self._running[0][0] if self._running else inf
            following = min(step, self._clients.next_due)
            if following == inf:
                break
            self.now = max(self.now, following)
            if step <= self.now:
                self._timed(self.scheduler.done, self._running.popleft()[1])
                self._tell()
        assert self.scheduler.idle, "the scheduler has requests and orders nothing for them"
        self.outcome.seconds = self.now
        return self.outcome

    def _timed(self, function: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        started = perf_counter()
        result = function(*args, **more)
        self.outcome.scheduler_seconds += perf_counter() - started
        return result

    def _submit(self) -> None:
        for request in self._clients.due(self.now):
            calls = self._encoder.calls(request)
            self._samples[request.id] = len(calls)
            for call in calls:
                self._open[call.name] = _Open(call, request, self.now)
                message = Submit(
                    call.name,
                    0,
                    call.prompt,
                    Sampling(seed=0, temperature=0.0),
                    call.output_tokens,
                    call.namespace,
                )
                self._timed(self.scheduler.submit, message)

    def _order(self) -> None:
        while self.scheduler.in_flight < STEPS_AHEAD:
            step = self._timed(self.scheduler.next_step)
            if step is None:
                return
            result = self._worker.run(step, self._admitted(step))
            begin = self._running[-1][0] if self._running else self.now
            self._running.append((begin + result.seconds, result))

    def _admitted(self, step: RunStep) -> dict[int, Call]:
        """Whom the slots that a step fills stand for."""
        if not step.admits:
            return {}
        names = {r.slot: r.submit.request_id for r in self.scheduler.running}
        calls = {}
        for admit in step.admits:
            entry = self._open[names[admit.slot]]
            calls[admit.slot] = entry.call
            if not entry.admitted:
                entry.admitted = True
                self.outcome.admitted.append(entry.call.name)
                self.outcome.waiting.append(self.now - entry.submitted)
        return calls

    def _tell(self) -> None:
        messages = [message for _, message in self.scheduler.outbox]
        self.scheduler.outbox.clear()
        for message in messages:
            if isinstance(message, Rejected):
                self.outcome.rejected.add(message.request_id)
                self._end(message.request_id)
            else:
                assert isinstance(message, Tokens), "nothing else was asked for"
                self._take(message)

    def _take(self, message: Tokens) -> None:
        entry = self._open[message.request_id]
        if not entry.first:
            entry.first = True
            self.outcome.ttft.append(self.now - entry.submitted)
        if message.finish:
            self.outcome.finished += 1
            self.outcome.prompt_tokens += entry.call.prompt_tokens
            self.outcome.cached_tokens += message.cached_tokens
            self.outcome.output_tokens += entry.call.output_tokens
            self._end(message.request_id)

    def _end(self, name: str) -> None:
        request = self._open.pop(name).request
        self._samples[request.id] -= 1
        if not self._samples[request.id]:
            del self._samples[request.id]
            self._clients.finished(request, self.now)
        self._progress()
