"""The command line: what it prints, what it refuses, what it needs to run."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from radixserve.cache import POLICIES
from radixserve.config import SchedulerConfig, fields_of
from radixserve.scheduler.order import ORDERS
from radixserve.simulate import options, plot
from radixserve.simulate.command import main
from radixserve.simulate.report import quantile
from tests.simulate.sets import text_set, write

PROMISED = [
    "cached_tokens",
    "prompt_tokens",
    "hit_rate",
    "bound",
    "bound_tokens",
    "requests",
    "steps",
    "scheduler_us_per_step",
    "ttft_p99_s",
    "waiting_max_s",
    "evicted_pages",
    "preemptions",
    "trace",
    "page_size",
    "max_total_tokens",
    "users",
    "schedule_policy",
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """30 sessions of two turns over three shared beginnings; each second turn quotes the first."""
    segments = [" ".join(f"w{part}x{word}" for word in range(30)) for part in range(3)]
    segments += [f"question {number} of many" for number in range(30)] + ["well"]
    rows: list[dict[str, Any]] = []
    for number in range(30):
        start = [["system", number % 3], ["user", 3 + number]]
        again = [*start, ["assistant", 33], ["user", 3 + (number + 1) % 30]]
        rows.append({"session": str(number), "prompt": start, "outputs": [33]})
        rows.append({"session": str(number), "prompt": again, "outputs": [33], "n": 2})
        rows[-1]["after"] = [len(rows) - 2]
    return text_set(tmp_path / "talk", rows, segments)


def ask(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> list[dict[str, Any]]:
    assert main([*map(str, argv), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_json_has_what_is_promised_last(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (result,) = ask(capsys, trace, "--page-size", "1")
    assert set(PROMISED) <= result.keys()
    assert set(fields_of(SchedulerConfig)) - {"record_trace"} <= result.keys()
    assert result["cached_tokens"] == result["bound_tokens"] > 0
    assert result["hit_rate"] == result["bound"] and result["requests"] == 60
    assert result["evicted_pages"] == result["rejected"] == 0 and result["users"] == 1
    assert 0 < result["scheduler_us_per_step"] < 1e5


def test_several_values_are_a_table(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--users", "1,4", "--max-total-tokens", "256,4096"]
    assert main([str(trace), *argv, "--optimum"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split()[:2] == ["users", "max-total-tokens"]
    for words in ("hit %", "bound %", "optimum %", "TTFT ms", "waiting ms", "scheduler us/step"):
        assert words in heading
    assert "radix-eviction-policy" not in heading and "rejected" not in heading
    assert [row.split()[:2] for row in rows] == [
        ["1", "256"], ["1", "4096"], ["4", "256"], ["4", "4096"]
    ]  # fmt: skip
    assert len({len(row) for row in [heading, *rows]}) == 1
    hits = [float(row.split()[2]) for row in rows]
    optima = [float(row.split()[4]) for row in rows]
    assert hits[0] < hits[1] and hits[0] < optima[0] <= optima[1]


def test_what_is_asked_for_is_what_runs(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plain,) = ask(capsys, trace)
    (none,) = ask(capsys, trace, "--outputs", "none")
    (samples,) = ask(capsys, trace, "--samples")
    (few,) = ask(capsys, trace, "--limit", "7")
    (off,) = ask(capsys, trace, "--disable-radix-cache")
    (small,) = ask(capsys, trace, "--chunked-prefill-size", "32")
    (dear,) = ask(capsys, trace, "--cost", "60,300,600")
    (one,) = ask(capsys, trace, "--users", "8", "--max-running-requests", "1")
    assert none["output_tokens"] == 60 < plain["output_tokens"]
    assert samples["requests"] == 90 and few["requests"] == 7
    assert off["cached_tokens"] == 0 < plain["cached_tokens"]
    assert small["steps"] > plain["steps"] and small["chunked_prefill_size"] == 32
    assert dear["seconds"] == pytest.approx(10 * plain["seconds"])
    assert one["max_running_requests"] == 1 and one["waiting_max_s"] > plain["waiting_max_s"]


def test_open_loops(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = ask(capsys, trace, "--rate", "1,1000")
    assert slow["seconds"] > 15 > fast["seconds"] and slow["ttft_max_s"] < fast["ttft_max_s"]
    (other,) = ask(capsys, trace, "--rate", "1", "--seed", "1")
    assert other["seconds"] != slow["seconds"]
    rows = [{"timestamp": 1000 * k, "input_length": 900, "output_length": 2, "hash_ids": [0, k]}
            for k in range(1, 9)]  # fmt: skip
    path = write(tmp_path / "m.jsonl.gz", rows)
    (recorded,) = ask(capsys, path, "--recorded-times", "--block", "16")
    (faster,) = ask(capsys, path, "--recorded-times", "--block", "16", "--speed", "4")
    assert 8 < recorded["seconds"] < 9 and 2 < faster["seconds"] < 3
    assert recorded["prompt_tokens"] == 8 * 29 and recorded["cached_tokens"] == 7 * 16


def test_a_recording_tells_what_steps_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [{"radixserve_trace": 1, "page_size": 4, "model": "m"}]
    one = {"tenant": "", "ns": 0, "prompt": 9, "output": 1, "blocks": [5, 6], "cached": 0}
    rows += [{"at": k} | one for k in range(3)]
    rows += [{"step": [tokens, tokens % 2, 0.5 + tokens]} for tokens in (2, 9, 30)]
    path = write(tmp_path / "own.jsonl.gz", rows)
    (result,) = ask(capsys, path, "--cost", "measured", "--page-size", "4")
    assert result["ttft_p50_s"] == pytest.approx(0.5) and result["ttft_max_s"] == pytest.approx(9.5)
    assert result["cached_tokens"] == 16


def test_two_processes_print_the_same(trace: Path) -> None:
    """With other hash seeds; all but the time that the scheduler's code took."""
    command = [sys.executable, "-m", "radixserve.simulate", str(trace), "--json", "--optimum"]
    command += ["--users", "4", "--shuffle", "3", "--max-total-tokens", "512"]
    command += ["--radix-eviction-policy", ",".join(POLICIES), "--schedule-policy"]
    command += [",".join(ORDERS)]
    outs = []
    for seed in ("1", "2"):
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        )
        runs = [json.loads(line) for line in done.stdout.splitlines()]
        for run in runs:
            assert run.pop("scheduler_us_per_step") > 0
        outs.append(runs)
    assert outs[0] == outs[1] and len(outs[0]) == len(POLICIES) * len(ORDERS)


def test_neither_torch_nor_sockets_are_imported(trace: Path) -> None:
    code = (
        "import sys; from radixserve.simulate.command import main; main(sys.argv[1:]);"
        "print({'torch', 'zmq', 'transformers', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(trace), "--limit", "2"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--users 0", "0 is not a number above 0"),
        ("--users 2,x", "invalid"),
        ("--rate inf", "inf is not a number above 0"),
        ("--users 2 --rate 3", "exclude each other"),
        ("--recorded-times --rate 3", "exclude each other"),
        ("--speed 2", "--speed: only with --recorded-times"),
        ("--seed 2", "--seed: only with --rate"),
        ("--page-size 0", "--page-size: Expected `int` >= 1"),
        ("--page-size 16,999", "--page-size: Expected `int` <= 256"),
        ("--max-total-tokens 8", "--max-total-tokens: less than a page"),
        ("--radix-eviction-policy lru,oracle", "'oracle' is none of"),
        ("--schedule-policy none", "'none' is none of"),
        ("--cost 1,2", "wants STEP_MS,PREFILL_US,DECODE_US"),
        ("--cost 0,0,0", "wants STEP_MS,PREFILL_US,DECODE_US"),
        ("--limit 0", "0 is not a number above 0"),
        ("--plot x.png", "give several --max-total-tokens"),
        ("--plot x.png --max-total-tokens 0,512", "give several --max-total-tokens"),
        ("--record-trace x", "unrecognized arguments"),
        ("--port 1", "unrecognized arguments"),
    ],
)
def test_a_wrong_command_line_is_explained(
    trace: Path, argv: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(trace), *argv.split()])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_missing_data_is_said_and_exits_with_2(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([str(write(tmp_path / "empty.jsonl.gz", []))]) == 2
    assert main([str(write(tmp_path / "odd.jsonl.gz", [{"hash_ids": [1]}]))]) == 2
    assert main([str(trace), "--cost", "measured"]) == 2
    said = capsys.readouterr()
    assert not said.out
    for words in ("no such file", "no known form", "lacks 'input_length'", "only a recording"):
        assert words in said.err


def test_a_picture_is_drawn(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the extra `simulate` is not installed")
    file = tmp_path / "out.png"
    argv = ["--max-total-tokens", "256,512,1024", "--radix-eviction-policy", "lru,fifo"]
    ask(capsys, trace, *argv, "--optimum", "--plot", file)
    assert file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 5000


def test_without_matplotlib_nothing_is_run(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([str(trace), "--max-total-tokens", "256,512", "--plot", "out.png"]) == 2
    said = capsys.readouterr()
    assert "radixserve[simulate]" in said.err and not said.out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("installed", [True, False])
def test_a_terminal_sees_progress_if_it_can(
    trace: Path, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, pipe = Terminal(), io.StringIO()
    if not installed:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    for stderr in (screen, pipe):
        monkeypatch.setattr(sys, "stderr", stderr)
        assert main([str(trace), "--limit", "3", "--users", "1,2"]) == 0
    assert ("/6" in screen.getvalue()) == installed and not pipe.getvalue()


def test_curves_are_by_policy_and_size() -> None:
    def result(policy: str, size: int, rate: float) -> dict[str, Any]:
        given = {"radix_eviction_policy": policy, "max_total_tokens": size}
        return {**given, "hit_rate": rate, "optimum": 0.5}

    results = [result("lru", 8, 0.25), result("lru", 4, 0.125), result("fifo", 8, 0.0)]
    assert plot.curves(results, ["max_total_tokens", "radix_eviction_policy"]) == {
        "radix-eviction-policy lru": [(4, 12.5), (8, 25.0)],
        "radix-eviction-policy fifo": [(8, 0.0)],
        "optimum": [(4, 50.0), (8, 50.0)],
    }


def test_quantiles_are_ranks() -> None:
    values = [float(k) for k in range(1, 101)]
    assert [quantile(values, share) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert quantile([3.0], 0.5) == 3.0 and quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([], 0.5) == 0.0


def test_every_setting_of_the_scheduler_is_a_flag() -> None:
    parsed = options.parse(["x"])
    (setting,) = parsed.settings
    expected = SchedulerConfig(max_queued_requests=options.UNLIMITED)
    assert setting.scheduler == expected and not parsed.varied
