"""What `bench.machine` reads from the system and from a server."""

import os
import subprocess
import sys

import pytest

from bench.machine import _metric, cpu_seconds, resident, table, used

BUSY = "import sys, time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"


def test_cpu_time_is_told_by_process_of_the_launcher() -> None:
    code = BUSY + "print('done', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "radixserve.worker.process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"done\n"
        seconds = cpu_seconds(os.getpid())
        child.kill()
    assert 0.3 <= seconds["worker"] < 30
    assert seconds["other"] > 0  # this process


def test_resident_memory_of_a_launcher_and_its_children() -> None:
    before = resident(os.getpid())
    code = "import sys; held = b'x' * (100 << 20); print('done', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "radixserve.worker.process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"done\n"
        more = resident(os.getpid()) - before
        child.kill()
    assert 100 << 20 < more < 150 << 20


def test_percents_are_of_one_core() -> None:
    assert used({"worker": 1.0}, {"worker": 3.0, "scheduler": 0.5}, 2.0) == {
        "worker": 100.0,
        "scheduler": 25.0,
    }


def test_a_metric_is_found_by_its_whole_name() -> None:
    text = "# TYPE a_total counter\na_total_more 1\na_total 2.5\n"
    assert _metric(text, "a_total") == 2.5
    with pytest.raises(RuntimeError, match="total"):
        _metric(text, "total")


def test_the_table_says_what_was_measured() -> None:
    cpu = {"worker": 1.25}
    one = {
        "tokens_per_second": 99.6,
        "in_steps": 0.961,
        "gap_ms": {"median": 10.0, "p99": 20.0, "longest": 30.0},
        "cpu_percent": cpu,
    }
    said = table(
        {
            "idle": {"cpu_percent": cpu},
            "decode": one,
            "arrivals": one | {"arrived": 7, "ttft_ms": 500.0},
            "threads": {"all cores": 2},
            "memory": {"weights": 90.0, "pool": 910.0, "idle": 500.0, "full": 1250.0},
        }
    )
    assert "full 1250: 1.25 times the weights and the pool" in said
    assert "100 tok/s, 96.1%" in said and "7 prompts came, first token after 500 ms" in said
