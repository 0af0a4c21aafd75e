"""Pool sizing, and free memory and cores read from made-up machines."""

from pathlib import Path

import pytest
import torch

from radixserve.models.spec import ModelSpec
from radixserve.worker.memory import free_memory, size_pool, working_bytes
from radixserve.worker.resolve import usable_cores

GIB = 1 << 30


def size(**changes):
    fields = {
        "page_size": 16,
        "page_bytes": 1000,
        "max_total_tokens": 0,
        "free_bytes": 100_000,
        "weight_bytes": 20_000,
        "working_bytes": 10_000,
        "fraction": 0.5,
    }
    return size_pool(**(fields | changes))


def test_tokens_asked_for_are_rounded_down_to_pages():
    assert size(max_total_tokens=100).num_pages == 6
    assert "96 tokens" in str(size(max_total_tokens=100))


def test_share_of_free_memory_less_the_weights():
    assert size().num_pages == 30
    assert "0.50 of" in str(size())


def test_a_step_has_room_whatever_the_share():
    assert size(fraction=0.9).num_pages == 70
    assert "0.90 of" in str(size(fraction=0.9))
    assert size(fraction=0.95).num_pages == 70
    assert "for a step" in str(size(fraction=0.95))
    assert size(fraction=0.95, max_total_tokens=1600).num_pages == 100, "who asks gets"


def test_what_a_step_needs_covers_its_largest_tensors():
    spec = ModelSpec(
        architecture="",
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=256,
        num_layers=9,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position=100,
    )
    half = {"dtype": torch.bfloat16, "device": torch.device("cpu")}
    one = working_bytes(spec, tokens=1, rows=0, **half)
    assert one == 2 * (4 * 64 + 12 * 16 + 3 * 256)
    assert working_bytes(spec, tokens=50, rows=0, **half) == 50 * one
    assert working_bytes(spec, tokens=50, rows=3, **half) == 50 * one + 3 * 1000 * (2 + 6 * 4)
    gpu = half | {"device": torch.device("cuda")}
    assert working_bytes(spec, tokens=1, rows=0, **gpu) == one + 2 * GIB


@pytest.mark.parametrize("changes", [{"max_total_tokens": 15}, {"weight_bytes": 49_500}])
def test_less_than_a_page_is_refused_with_a_sentence(changes):
    with pytest.raises(ValueError, match="--max-total-tokens"):
        size(**changes)


def machine(root: Path, groups: str, **files: str) -> Path:
    """A root folder with /proc and control groups; names of `files` are below /sys/fs/cgroup."""
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()} | {
        "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {8 * GIB // 1024} kB\n",
        "proc/self/cgroup": groups,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(folder: str, limit: int | str) -> dict[str, str]:
    return {
        f"{folder}memory.max": f"{limit}\n",
        f"{folder}memory.current": f"{3 * GIB}\n",
        f"{folder}memory.stat": f"anon 5\ninactive_file {GIB}\n",
    }


def v1(folder: str, limit: int) -> dict[str, str]:
    return {
        f"{folder}memory.limit_in_bytes": f"{limit}\n",
        f"{folder}memory.usage_in_bytes": f"{3 * GIB}\n",
        f"{folder}memory.stat": f"total_inactive_file {GIB}\n",
    }


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, 8 * GIB),
        ("0::/\n", v2("", "max"), 8 * GIB),
        ("0::/\n", v2("", 4 * GIB), 2 * GIB),
        ("0::/\n", v2("", 64 * GIB), 8 * GIB),
        ("0::/\n", v2("", GIB), 0),
        ("0::/a/b\n", v2("a/", 4 * GIB) | v2("a/b/", "max"), 2 * GIB),
        ("0::/a/b\n", v2("a/", 5 * GIB) | v2("a/b/", 4 * GIB), 2 * GIB),
        ("0::/a\n", v2("b/", 4 * GIB), 8 * GIB),
        ("4:memory:/job\n1:cpu:/job\n", v1("memory/job/", 4 * GIB), 2 * GIB),
        ("4:memory:/not/visible/here\n", v1("memory/", 4 * GIB), 2 * GIB),
        ("1:cpu:/job\n", v1("cpu/job/", 4 * GIB), 8 * GIB),
    ],
)
def test_free_memory_of_a_cpu(tmp_path, groups, files, expected):
    assert free_memory(torch.device("cpu"), machine(tmp_path, groups, **files)) == expected


def test_a_system_that_does_not_say_is_refused(tmp_path):
    with pytest.raises(ValueError, match="memory is available"):
        free_memory(torch.device("cpu"), tmp_path)


def test_free_memory_of_this_machine():
    assert free_memory(torch.device("cpu")) > 0


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("", {}, 8),
        ("0::/a\n", {"a/cpu.max": "250000 100000\n"}, 2),
        ("0::/a\n", {"a/cpu.max": "max 100000\n", "cpu.max": "400000 100000\n"}, 4),
        ("0::/a\n", {"a/cpu.max": "50000 100000\n"}, 1),
        ("0::/a\n", {"a/cpu.max": "9900000 100000\n"}, 8),
        (
            "3:cpu,cpuacct:/\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "300000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            3,
        ),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_usable_cores(tmp_path, monkeypatch, groups, files, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert usable_cores(machine(tmp_path, groups, **files)) == cores
