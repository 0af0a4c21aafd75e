"""`scripts/gpu-check` without a GPU: the dry run, faults, and what there is no time for."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bench.gpu.check import Absent, Check, DeviceLost
from bench.gpu.command import arguments, supervise
from bench.gpu.report import FILE, Report, Row
from bench.gpu.run import LOST, SECTIONS, Section, run_sections
from tests.bench.gpu_toys import toy_check

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
    assert {row.section for row in rows} == SECTIONS.keys()
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
    return toy_check(tmp_path)


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
    assert "in bad\n" in (check.folder / "errors.txt").read_text(), "with the traceback"
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
    for name, code in (("dies", -9), ("loses", LOST), ("hangs", -9)):
        assert f"{name} | process | failed | ended with {code}" in said
    assert len(Report(tmp_path, {}).rows) == 3, "they are saved, too"
    (tmp_path / "log").unlink()
    assert supervise(child, ["good", "last"], time.time() + 50, tmp_path) == 0
    never = [sys.executable, "-c", "import sys; sys.exit(7)"]
    assert supervise(never, ["good", "last"], time.time() + 50, tmp_path) == 1


def test_ceilings_come_first_and_unknown_sections_are_refused(tmp_path: Path) -> None:
    args = arguments(["--only", "goals,decode"], str(tmp_path))
    assert args.sections == ["ceilings", "decode", "goals"] and args.budget == 470
    with pytest.raises(SystemExit):
        arguments(["--only", "decode,speed"], str(tmp_path))
