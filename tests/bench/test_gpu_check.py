"""`scripts/gpu-check` without a GPU: the dry run, faults, cut sections, and the clock by events."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from bench.gpu import timing
from bench.gpu.check import Absent, Check, DeviceLost
from bench.gpu.command import arguments, supervise
from bench.gpu.report import FILE, Report, Row
from bench.gpu.run import LOST, SECTIONS, Section, run_sections
from bench.gpu.sizes import LLAMA_3_8B, TOY
from bench.gpu.timing import CudaTimer, HostTimer

ROOT = Path(__file__).parents[2]
SECONDS = 300


def test_the_dry_run_goes_through_every_section(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts" / "gpu-check"), "--dry-run", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert {"date", "commit", "machine", "command", "result"} <= lines[0].keys()
    assert lines[0]["machine"]["triton"] and lines[0]["dry_run"]
    rows = [Row(**line["result"]) for line in lines]
    assert {row.section for row in rows} == {*SECTIONS, "rivals"}
    assert not [row for row in rows if row.verdict in ("failed", "DIFFERS", "finding", "cut")]
    assert not [row for row in rows if row.verdict == "skipped" and row.section != "rivals"]
    names = {row.name for row in rows if row.us}
    assert {"torch SDPA, contiguous", "ours", "ours, tiled", "ours, split"} <= names
    compared = {row.name.partition(",")[0] for row in rows if row.verdict == "OK"}
    kernels = ("paged_attention", "matmul", "rms_norm", "silu_mul", "kv_write", "rope_kv_write")
    assert {*kernels, "sample", "edit_logits"} <= compared
    kinds = {row.name for row in rows if row.section == "engine"}
    for kind in ("as usual", "deterministic", "without graphs"):
        assert {f"decode step, {kind}", f"idle between steps, {kind}"} <= kinds
    goals = [row for row in rows if row.section == "goals"]
    unmeasured = [row.name for row in goals if row.verdict == "not measured"]
    assert len(goals) > 8 and all("FlashInfer" in name for name in unmeasured)
    assert "== goals" in done.stdout and goals[0].name in done.stdout.split("== goals")[1]
    entry = next(row.note for row in rows if row.name == "for tuned.json")
    from radixserve_kernels.tiles import table_of

    assert table_of([json.loads(entry)])["attention"]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    return Check(torch.device("cpu"), TOY, HostTimer(), Report(tmp_path, {}), tmp_path)


def sections(
    monkeypatch: pytest.MonkeyPatch, **functions: Callable[[Check], None]
) -> dict[str, Section]:
    module = ModuleType("sections_of_a_test")
    for name, function in functions.items():
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return {name: Section(module.__name__, name, 10) for name in functions}


def test_a_section_that_raises_stops_no_other(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(check: Check) -> None:
        check.row("before")
        raise KeyError("a reason")

    table = sections(monkeypatch, bad=bad, good=lambda check: check.row("done"))
    table = {"absent": Section("no_such_module", "section", 10), **table}
    run_sections(check, list(table), time.time() + 100, table)
    found = [(row.section, row.name, row.verdict) for row in check.report.rows]
    assert found == [
        ("absent", "absent", "failed"),
        ("bad", "before", ""),
        ("bad", "bad", "failed"),
        ("good", "done", ""),
    ]
    assert "a reason" in check.report.rows[2].note and check.report.failed
    assert Report(check.folder, {}).rows == check.report.rows, "each row was saved"


def test_what_there_is_no_time_for_is_cut_and_said(
    check: Check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(check: Check) -> None:
        check.case("short", "", lambda: check.row("short"), seconds=5)
        check.case("long", "", lambda: check.row("long"), seconds=50)

    table = sections(monkeypatch, first=work, second=work, goals=lambda check: check.row("sum"))
    table["goals"] = Section("sections_of_a_test", "goals", 0)
    run_sections(check, list(table), time.time() + 60, table)
    rows = [(row.section, row.name, row.verdict) for row in check.report.rows]
    # what the first section leaves of its half is the second one's
    assert rows == [
        ("first", "short", ""),
        ("first", "long", "cut"),
        ("second", "short", ""),
        ("second", "long", ""),
        ("goals", "sum", ""),
    ]
    assert "first | long | cut | needs about 50 s" in check.report.table()
    run_sections(check, ["first", "goals"], time.time() - 1, table)
    assert [row.verdict for row in check.report.rows[5:]] == ["cut", ""]


def test_a_case_that_lacks_something_is_skipped(check: Check) -> None:
    def lacking() -> None:
        raise Absent("not installed")

    assert check.case("a", "b", lacking) is None
    assert (check.report.rows[0].verdict, check.report.rows[0].note) == ("skipped", "not installed")
    assert not check.report.failed


def test_a_device_that_is_lost_ends_the_process(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(check, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "synchronize", gone)
    table = sections(monkeypatch, one=lambda check: check.case("kernel", "", gone))
    with pytest.raises(DeviceLost):
        run_sections(check, ["one"], time.time() + 100, table)
    assert check.report.rows[0].verdict == "failed"


DYING = """
import json, os, sys, time
at = sys.argv.index
sections = sys.argv[at("--sections") + 1].split(",")
folder, ends = sys.argv[1], float(sys.argv[at("--ends") + 1])
for section in sections:
    state = json.dumps({"section": section, "kill_at": time.time() + 2})
    with open(folder + "/state.new", "w") as file: file.write(state)
    os.replace(folder + "/state.new", folder + "/state.json")
    with open(folder + "/log", "a") as file: file.write(section + " ")
    if section == "dies": os.kill(os.getpid(), 9)
    if section == "loses": sys.exit(LOST)
    if section == "hangs": time.sleep(100)
sys.exit(0)
"""


def test_the_sections_behind_one_that_kills_its_process_are_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    child = [sys.executable, "-c", DYING.replace("LOST", str(LOST)), str(tmp_path)]
    names = ["good", "dies", "loses", "hangs", "last"]
    assert supervise(child, names, time.time() + 50, tmp_path) == 1
    assert (tmp_path / "log").read_text().split() == names
    said = capfd.readouterr().out
    for name in ("dies", "loses", "hangs"):
        assert f"{name} | the process ended with" in said
    (tmp_path / "log").unlink()
    assert supervise(child, ["good", "last"], time.time() + 50, tmp_path) == 0
    never = [sys.executable, "-c", "import sys; sys.exit(7)"]
    assert supervise(never, ["good", "last"], time.time() + 50, tmp_path) == 1


def test_ceilings_come_first_and_unknown_sections_are_refused(tmp_path: Path) -> None:
    args = arguments(["--only", "goals,decode"], str(tmp_path))
    assert args.sections == ["ceilings", "decode", "goals"] and args.budget == 470
    with pytest.raises(SystemExit):
        arguments(["--only", "decode,speed"], str(tmp_path))


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


class Wrapper:
    """FlashInfer's wrappers as far as `rivals` calls them, in plain torch over pages in HND."""

    def __init__(self, workspace: torch.Tensor, layout: str, **_: Any) -> None:
        assert layout == "HND" and workspace.dtype == torch.uint8

    def levels(self, *given: Any) -> list[tuple[Any, Any, Any]]:
        return [tuple(x.tolist() for x in given)]

    def plan(self, *given: Any, q_data_type: torch.dtype, **_: Any) -> None:
        assert q_data_type == torch.bfloat16
        self.read, (self.heads, self.kv_heads, self.size, self.page) = given[:3], given[3:]
        self.q_start = list(range(len(given[0])))
        self.levels_ = [tuple(x.tolist() for x in self.read)]

    def run(self, q: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        outputs = []
        for row in range(len(self.q_start) - 1):
            keys, values = (
                torch.cat([self._gathered(pages[:, half], level, row) for level in self.levels_], 1)
                for half in range(2)
            )
            own = q[self.q_start[row] : self.q_start[row + 1]].transpose(0, 1).float()
            group = self.heads // self.kv_heads
            keys, values = (x.float().repeat_interleave(group, 0) for x in (keys, values))
            new, length = own.shape[1], keys.shape[1]
            mask = torch.ones(new, length, dtype=torch.bool).tril(length - new)
            found = torch.nn.functional.scaled_dot_product_attention(
                own, keys, values, attn_mask=mask
            )
            outputs.append(found.transpose(0, 1))
        return torch.cat(outputs)

    def _gathered(self, half: torch.Tensor, level: tuple[Any, ...], row: int) -> torch.Tensor:
        starts, indices, lasts = level
        row = min(row, len(lasts) - 1)  # a shared level has one row for all
        own = indices[starts[row] : starts[row + 1]]
        length = (len(own) - 1) * self.page + lasts[row]
        return half[own].transpose(0, 1).flatten(1, 2)[:, :length]


class Prefill(Wrapper):
    def plan(self, q_start: torch.Tensor, *given: Any, causal: bool = False, **rest: Any) -> None:
        assert causal
        super().plan(*given, **rest)
        self.q_start = q_start.tolist()


class Cascade(Wrapper):
    def __init__(self, levels: int, *rest: Any) -> None:
        assert levels == 2
        super().__init__(*rest)

    def plan(
        self, q_starts: Any, starts: Any, indices: Any, lasts: Any, *given: Any, **rest: Any
    ) -> None:
        super().plan(starts[1], indices[1], lasts[1], *given, **rest)
        levels = zip(starts, indices, lasts, strict=True)
        self.levels_ = [tuple(x.tolist() for x in level) for level in levels]
        assert q_starts[0].tolist() == [0, q_starts[1].tolist()[-1]]


@pytest.mark.parametrize(
    ("request_", "shared", "names"),
    [
        ((1, 40), 0, {"torch SDPA, contiguous", "FlashInfer decode"}),
        ((1, 40), 16, {"torch SDPA, contiguous", "FlashInfer decode", "FlashInfer cascade"}),
        ((5, 40), 0, {"FlashInfer prefill"}),
        ((21, 21), 0, {"torch SDPA, contiguous", "FlashInfer prefill"}),
    ],
)
def test_rivals_compute_the_same(
    request_: tuple[int, int],
    shared: int,
    names: set[str],
    check: Check,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from bench.gpu import rivals
    from bench.gpu.paged import Rows, Shape

    compiled = tmp_path / "data" / "aot" / "page" / "page.so"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    package = ModuleType("flashinfer")
    package.__file__ = str(tmp_path / "__init__.py")
    wrappers = {
        "BatchDecodeWithPagedKVCacheWrapper": Wrapper,
        "BatchPrefillWithPagedKVCacheWrapper": Prefill,
        "MultiLevelCascadeAttentionWrapper": Cascade,
    }
    for name, wrapper in wrappers.items():
        setattr(package, name, wrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    new, length = request_
    shape = Shape(heads=4, kv_heads=2, head_dim=16, page_size=8)
    rows = Rows(shape, [length] * 3, torch.device("cpu"), shared=shared, queries=True)
    requests = [(row, new, length) for row in range(3)]
    expected = rows.expected(requests)
    found = rivals.ready(check, [rows], requests, rows.query(requests), "case")
    assert found.keys() == names, [str(row) for row in check.report.rows]
    for name, (call,) in found.items():
        out = call()
        if name.startswith("torch"):
            out = out.transpose(1, 2).flatten(0, 1)
        error = (out.double() - expected).norm() / expected.norm()
        assert error < 1e-2, name
