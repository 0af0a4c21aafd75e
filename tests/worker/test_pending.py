"""Steps in flight: the loop of the process with a runner whose results come late."""

import os
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from radixserve.channel import Inbox, Outbox
from radixserve.config import Config
from radixserve.messages import (
    RunStep,
    StepDone,
    Stop,
    TokenLogprobs,
    ToScheduler,
    ToWorker,
    unpack,
)
from radixserve.worker import process
from radixserve.worker.pending import Pending
from radixserve.worker.sampling import Logprobs, Sampled
from tests.worker.requests import GREEDY, Request, answer
from tests.worker.test_exactness import PAGES, PROMPT

SECONDS = 10


class LateResult:
    """A step's result, there once the test lets it be."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.there = threading.Event()

    def ready(self) -> bool:
        return self.there.is_set()

    def result(self) -> StepDone:
        assert self.there.wait(SECONDS)
        return StepDone(step=self.step, tokens=b"")


class LateRunner:
    """Notes what is submitted."""

    def __init__(self) -> None:
        self.submitted: list[LateResult] = []

    def submit(self, step: RunStep) -> LateResult:
        self.submitted.append(LateResult(step.step))
        return self.submitted[-1]

    def until(self, count: int) -> None:
        """Wait until that many steps are submitted."""
        deadline = time.monotonic() + SECONDS
        while len(self.submitted) < count and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(self.submitted) == count


class Loop:
    """The loop in a thread, and the scheduler's ends of its sockets."""

    def __init__(self, run_dir: str) -> None:
        self.runner = LateRunner()
        self._config = Config(run_dir=run_dir, launcher=os.getppid())
        self._inbox: Inbox[ToWorker] = Inbox(run_dir, "worker", ToWorker)
        self._scheduler: Outbox[ToScheduler] = Outbox(run_dir, "scheduler")
        self._thread = threading.Thread(target=self._run)
        self.results: Inbox[ToScheduler] = Inbox(run_dir, "scheduler", ToScheduler)
        self.worker: Outbox[ToWorker] = Outbox(run_dir, "worker")
        self._thread.start()

    def _run(self) -> None:
        process.run_steps(self._config, self.runner, self._inbox, self._scheduler)

    def steps(self, *numbers: int) -> None:
        self.worker.send([RunStep(step=number, rows=()) for number in numbers])

    def done(self, count: int) -> list[int]:
        """The numbers of the next `count` results."""
        found: list[int] = []
        deadline = time.monotonic() + SECONDS
        while len(found) < count and time.monotonic() < deadline:
            found += [message.step for message in self.results.receive(0.1)]
        return found

    def stop(self) -> None:
        self.worker.send([Stop()])
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        for socket in (self.results, self.worker, self._inbox, self._scheduler):
            socket.close()


@pytest.fixture
def loop(tmp_path) -> Iterator[Loop]:
    made = Loop(str(tmp_path))
    yield made
    for result in made.runner.submitted:
        result.there.set()
    made.stop()


def test_a_step_is_submitted_while_an_earlier_one_is_pending(loop):
    loop.steps(1)
    loop.runner.until(1)
    loop.steps(2)
    loop.runner.until(2)
    assert loop.results.receive(0.02) == []
    loop.runner.submitted[0].there.set()
    assert loop.done(1) == [1]
    loop.runner.submitted[1].there.set()
    assert loop.done(1) == [2]


def test_results_are_sent_in_order(loop):
    loop.steps(1, 2)
    loop.runner.until(2)
    loop.runner.submitted[1].there.set()
    assert loop.results.receive(0.02) == []
    loop.runner.submitted[0].there.set()
    assert loop.done(2) == [1, 2]


def test_at_most_two_steps_are_pending(loop):
    loop.steps(1, 2, 3)
    loop.runner.until(2)
    assert loop.results.receive(0.02) == []
    loop.runner.until(2)
    loop.runner.submitted[0].there.set()
    loop.runner.until(3)
    assert loop.done(1) == [1]


def test_a_result_that_is_there_is_sent_before_the_next_step_is_submitted(loop, monkeypatch):
    """On a CPU, where submitting a step takes as long as the step."""
    order: list[str] = []
    at_once = threading.Event()
    at_once.set()
    submit = loop.runner.submit

    def submit_and_finish(step: RunStep) -> LateResult:
        order.append(f"submit {step.step}")
        pending = submit(step)
        pending.there = at_once
        return pending

    def send(messages: list[StepDone]) -> None:
        order.extend(f"send {message.step}" for message in messages)

    monkeypatch.setattr(loop.runner, "submit", submit_and_finish)
    monkeypatch.setattr(loop._scheduler, "send", send)
    loop.steps(1, 2)
    loop.runner.until(2)
    deadline = time.monotonic() + SECONDS
    while len(order) < 4 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert order == ["submit 1", "send 1", "submit 2", "send 2"]


def test_steps_are_submitted_before_any_result_is_taken(make_runner):
    """The host needs no sampled token to build the next step."""
    expected = answer(make_runner(), Request(0, PROMPT, PAGES), 5)
    runner = make_runner()
    request = Request(0, PROMPT, PAGES, sampling=GREEDY)
    pending = [
        runner.submit(RunStep(step=1, rows=(request.prefill(),), admits=(request.admit,))),
        *(runner.submit(RunStep(step=n, rows=(request.decode(),))) for n in range(2, 6)),
        runner.submit(RunStep(step=6, rows=(), frees=(0,))),
    ]
    assert all(step.ready() for step in pending)
    done = [step.result() for step in pending]
    assert [each.step for each in done] == [1, 2, 3, 4, 5, 6]
    assert [token for each in done for token in unpack(each.tokens)] == expected
    assert all(each.seconds > 0 for each in done)


class Event:
    """A device's event. `now`: its clock in milliseconds; 250 go by between two records."""

    now = 0.0
    finished = False

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.waited = False

    def record(self) -> None:
        self.at = Event.now
        Event.now += 250.0

    def query(self) -> bool:
        return Event.finished or self.at == 0.0

    def synchronize(self) -> None:
        self.waited = True
        Event.finished = True

    def elapsed_time(self, end: "Event") -> float:
        assert end.waited, "the end must have come"
        return end.at - self.at


def test_on_a_gpu_events_tell_when_a_step_is_ready_and_how_long_it_took(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "now", 0.0)  # put back as it is now
    monkeypatch.setattr(Event, "finished", False)
    logprobs = Logprobs([1], [1], torch.tensor([-0.5]), torch.tensor([[8]]), torch.tensor([[-0.5]]))
    pending = Pending(7, torch.device("cuda"))
    pending.submitted(Sampled(torch.tensor([-1, 8], dtype=torch.int32), logprobs))
    assert not pending.ready()
    done = pending.result()
    assert pending.ready()
    assert (done.step, unpack(done.tokens), done.seconds) == (7, [-1, 8], 0.25)
    assert done.logprobs == (None, TokenLogprobs(-0.5, ((8, -0.5),)))
