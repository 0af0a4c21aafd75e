"""What gpu-check makes of what it measures: times by events, differences, goals, the best form."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.gpu import timing
from bench.gpu.check import Absent, Check
from bench.gpu.sizes import LLAMA_3_8B
from bench.gpu.timing import CudaTimer
from tests.bench.gpu_toys import toy_check


@pytest.fixture
def check(tmp_path: Path) -> Check:
    return toy_check(tmp_path)


def test_the_floors_of_the_model_are_those_of_llama_3() -> None:
    assert LLAMA_3_8B.products["qkv"] == (6144, 4096)
    assert LLAMA_3_8B.products["gate_up"] == (28672, 4096)
    assert 7.4e9 < LLAMA_3_8B.weights < 7.6e9, "8 G less the embedding"
    assert LLAMA_3_8B.token_numbers * 2 == 131072, "bytes of a token"


class Clock:
    """A device on which a call takes 50 us, and 7 us in a graph."""

    def __init__(self, *, capturable: bool) -> None:
        self.now = 0.0  # milliseconds
        self.capturable = capturable
        self.capturing = False
        self.captured = 0

    def call(self) -> str:
        if self.capturing:
            if not self.capturable:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.captured += 1
        else:
            self.now += 0.05
        return "result"


class Event:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def record(self) -> None:
        self.at = self.clock.now

    def elapsed_time(self, end: "Event") -> float:
        return end.at - self.at


class Graph:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls = 0

    def __enter__(self) -> None:
        self.clock.captured, self.clock.capturing = 0, True

    def __exit__(self, *_: object) -> None:
        self.clock.capturing, self.calls = False, self.clock.captured

    def replay(self) -> None:
        self.clock.now += 0.007 * self.calls


class Stream:
    def wait_stream(self, other: "Stream") -> None: ...


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    """Puts a `Clock` where torch has a GPU."""

    def make(*, capturable: bool = True) -> Clock:
        clock = Clock(capturable=capturable)
        cuda: dict[str, Any] = {
            "Event": lambda enable_timing: Event(clock),
            "Stream": Stream,
            "CUDAGraph": lambda: Graph(clock),
            "graph": lambda graph: graph,
            "stream": nullcontext,
            "current_stream": Stream,
            "synchronize": lambda: None,
        }
        for name, value in cuda.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(timing, "FLUSH_DEVICE", "cpu")
        monkeypatch.setattr(timing, "FLUSH_BYTES", 8)
        return clock

    return make


def test_on_a_gpu_graphs_are_timed_by_events(device: Callable[..., Clock]) -> None:
    clock = device()
    timer = CudaTimer()
    timings = timer.medians({"one": [clock.call], "two": [clock.call, clock.call]})
    assert timings["two"].captured
    assert timings["two"].us == pytest.approx(7), "of one of both calls"
    assert timer.span(clock.call, 10) == pytest.approx(50)
    assert timer.replayed(clock.call) == "result"


def test_what_cannot_be_captured_is_timed_as_it_is(device: Callable[..., Clock]) -> None:
    clock = device(capturable=False)
    timing_ = CudaTimer().medians({"one": [clock.call]})["one"]
    assert not timing_.captured and timing_.us == pytest.approx(50)
    with pytest.raises(RuntimeError, match="cannot be captured"):
        CudaTimer().replayed(clock.call)


def test_a_difference_is_told_and_fails_the_run_where_it_must(check: Check) -> None:
    from bench.gpu.bits import same
    from bench.gpu.correct import compare, equal

    one = torch.ones(3, 4, dtype=torch.bfloat16)
    other = one.clone()
    other[1, 2] += 0.5
    same(check, "same", "", one, one.clone(), must=True)
    compare(check, "near", "", one * 1.001, one.double())
    equal(check, "equal", "", one, one.clone())
    assert [row.verdict for row in check.report.rows] == ["OK"] * 3
    same(check, "finding", "", other, one, must=False)
    assert not check.report.failed and "up to 5.00e-01" in check.report.rows[-1].note
    unwritten = torch.full_like(one, torch.nan)
    same(check, "bits", "", other, one, must=True)
    same(check, "bits", "", unwritten, one, must=True)
    compare(check, "far", "", other, one.double())
    compare(check, "unwritten", "", unwritten, one.double())
    equal(check, "unequal", "", unwritten, one)
    assert [row.verdict for row in check.report.rows[4:]] == ["DIFFERS"] * 5
    assert check.report.failed and "far" in check.report.table().split("== not as it should be")[1]


def test_goals_compare_what_was_measured(check: Check) -> None:
    from bench.gpu import goals

    plain, shared = (goals.decode_case(check, shared=s) for s in (False, True))
    short = goals.extend_case(check, cached=True)
    assert plain == "2 x 40, 0 shared, page 8" and "32 shared" in shared
    check.facts = {
        f"decode: {plain}: floor": 91.0,
        f"decode: {plain}: ours": 100.0,
        f"rivals: {plain}: ours": 101.0,
        f"rivals: {plain}: FlashInfer decode": 101.0,
        f"decode: {shared}: floor": 100.0,
        f"decode: {shared}: ours": 116.0,
        f"rivals: {shared}: ours": 115.5,
        f"rivals: {shared}: FlashInfer decode": 200.0,
        f"rivals: {shared}: FlashInfer cascade": 110.0,
        f"extend: {short}: floor": 2.0,
        f"extend: {short}: ours": 5.9,
        "engine: decode 2 x 40, 0 shared: as usual": 10.0,
        "engine: decode 2 x 40, 0 shared: deterministic": 12.5,
        "engine: idle 2 x 40, 0 shared: as usual": 0.01,
    }
    goals.section(check)
    found = {row.name: (row.verdict, row.value) for row in check.report.rows}
    assert found["decode, nothing shared: share of copy bandwidth"] == ("yes", 0.91)
    assert found["decode, half shared: times its unique bytes"] == ("no", 1.16)
    assert found["extend behind a prefix: times its floor"] == ("yes", 2.95)
    assert found["deterministic: times the usual step"] == ("no", 1.25)
    assert found["idle between steps: share of the period"] == ("yes", 0.01)
    assert found[f"times FlashInfer's, {shared}"] == ("no", 1.05)
    assert found[f"times FlashInfer's, {plain}"] == ("yes", 1.0)
    assert found["first token, hot: times its floor"] == ("not measured", None)
    assert not check.report.failed


def test_the_device_s_idle_time_is_told_by_its_events() -> None:
    from bench.gpu.decoding import Steps, _gap

    clock = Clock(capturable=True)

    def pending(begin: float, end: float) -> Any:
        events = []
        for clock.now in (begin, end):
            events.append(Event(clock))
            events[-1].record()
        return SimpleNamespace(_events=tuple(events))

    steps = Steps.__new__(Steps)
    steps.pending = [pending(0, 9.5), pending(10, 19.9), pending(20, 28)]
    assert _gap(steps, 0.010) == pytest.approx(0.03), "the median of 0.5 and 0.1 of 10 ms"


def test_the_search_goes_on_without_forms_that_fail_and_ends_in_time(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.gpu import tuning

    monkeypatch.setattr(
        check.timer, "medians", lambda ways: {n: timing.Timing(c[0]()) for n, c in ways.items()}
    )

    def broken() -> float:
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(tuning, "TOGETHER", 2)
    calls: dict[str, list[timing.Call]] = {
        "as tuned": [lambda: 5.0, lambda: 4.0],
        "broken": [broken, broken],
        "better": [lambda: 3.0, lambda: 4.0],
    }
    assert tuning._best(check, "case", calls) == "better"
    verdicts = {row.name: row.verdict for row in check.report.rows}
    assert verdicts == {"broken": "skipped", "better": "", "as tuned": ""}
    check.deadline = time.time() + tuning.SECONDS / 2
    with pytest.raises(Absent):
        tuning._best(check, "case", calls)
    assert check.report.rows[-1].note == "0 of 3 forms were tried"
