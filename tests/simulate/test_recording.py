"""What the server records of a run is what it played: recorded, read, and played again."""

from pathlib import Path

import pytest

from radixserve.config import SchedulerConfig
from radixserve.messages import WorkerReady
from radixserve.scheduler.trace import TraceWriter
from radixserve.simulate.clients import Load, in_turn
from radixserve.simulate.optimum import lru
from radixserve.simulate.play import Simulation
from radixserve.simulate.tokens import Encoder
from radixserve.simulate.worker import Cost, measured
from radixserve.simulate.workloads import read, recorded_steps
from tests.simulate.sets import text_set

PAGE = 4
COST = Cost(step=0.5, prefill=0.01, decode=0.002)


def simulation(path: Path, load: Load) -> Simulation:
    config = SchedulerConfig(disable_page_copy=True, schedule_policy="fcfs")
    ready = WorkerReady(10_000, PAGE, 4, 64, 10_000, 10_000, "simulated")
    return Simulation(list(read(path)), Encoder(), load, config, ready, COST)


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """40 chats of two turns; the second stands on the first one's answer."""
    rows = []
    for number in range(40):
        first = [["system", number % 3], ["user", 3]]
        second = [*first, ["assistant", 4 + number % 2], ["user", 3]]
        rows.append({"session": str(number), "prompt": first, "outputs": [4 + number % 2]})
        rows.append({"session": str(number), "prompt": second, "outputs": [6]})
        rows[-1]["after"] = [2 * number]
    words = ["be kind to all", "be quick and be done", "think twice", "who are you, and why?"]
    return text_set(
        tmp_path / "talks", rows, [*words, *("a b c d e f g h", "i j k l m n o p", "q")]
    )


def test_what_was_recorded_is_what_was_played(talks: Path, tmp_path: Path) -> None:
    played = simulation(talks, Load(users=1))
    file = tmp_path / "own.jsonl.gz"
    writer = TraceWriter(str(file), PAGE, "simulated", played.scheduler.clock)
    played.scheduler.observer = writer
    first = played.run()
    writer.close()

    asked, again = in_turn(list(read(talks))), list(read(file))
    calls, copies = list(Encoder().stream(asked)), list(Encoder().stream(again))
    lengths = [(call.prompt_tokens, call.output_tokens) for call in calls]
    assert [(call.prompt_tokens, call.output_tokens) for call in copies] == lengths
    assert lru(copies, PAGE, 10_000) == lru(calls, PAGE, 10_000)
    assert [r.after for r in again if r.after] == [(k,) for k in range(0, 80, 2)]

    second = simulation(file, Load(users=1)).run()
    assert second.cached_tokens == first.cached_tokens > 0
    assert second.ttft == pytest.approx(first.ttft)
    later = simulation(file, Load(recorded_times=True)).run()
    assert later.cached_tokens == first.cached_tokens
    assert later.ttft == pytest.approx(first.ttft)


def test_the_cost_of_its_steps_is_found_again(
    talks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixserve.scheduler.trace.STEP_SAMPLE", 1)
    played = simulation(talks, Load(users=4))
    file = tmp_path / "own.jsonl"
    writer = TraceWriter(str(file), PAGE, "simulated", played.scheduler.clock)
    played.scheduler.observer = writer
    played.run()
    writer.close()
    steps = recorded_steps(file)
    assert len(steps.rows) == played.scheduler.counters.steps
    cost = measured(steps)
    assert (cost.step, cost.prefill, cost.decode) == pytest.approx(
        (COST.step, COST.prefill, COST.decode), rel=1e-3
    )
