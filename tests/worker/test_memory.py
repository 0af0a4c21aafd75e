"""Pool sizing, and free memory read from a made-up machine."""

from pathlib import Path

import pytest
import torch

from radixserve.worker.memory import free_memory, size_pool

GIB = 1 << 30


def size(**changes):
    fields = {
        "page_size": 16,
        "page_bytes": 1000,
        "max_total_tokens": 0,
        "free_bytes": 100_000,
        "weight_bytes": 20_000,
        "fraction": 0.5,
    }
    return size_pool(**(fields | changes))


def test_tokens_asked_for_are_rounded_down_to_pages():
    assert size(max_total_tokens=100).num_pages == 6
    assert "96 tokens" in str(size(max_total_tokens=100))


def test_share_of_free_memory_less_the_weights():
    assert size().num_pages == 30
    assert "0.50 of" in str(size())


@pytest.mark.parametrize("changes", [{"max_total_tokens": 15}, {"weight_bytes": 49_500}])
def test_less_than_a_page_is_refused_with_a_sentence(changes):
    with pytest.raises(ValueError, match="--max-total-tokens"):
        size(**changes)


def machine(root: Path, **files: str) -> Path:
    files = {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {8 * GIB // 1024} kB\n"} | files
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cgroup(limit: int | str) -> dict[str, str]:
    return {
        "sys/fs/cgroup/memory.max": f"{limit}\n",
        "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {GIB}\n",
    }


def cgroup_v1(limit: int) -> dict[str, str]:
    folder = "sys/fs/cgroup/memory"
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{3 * GIB}\n",
        f"{folder}/memory.stat": f"total_inactive_file {GIB}\n",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8 * GIB),
        (cgroup("max"), 8 * GIB),
        (cgroup(4 * GIB), 2 * GIB),
        (cgroup(64 * GIB), 8 * GIB),
        (cgroup(GIB), 0),
        (cgroup_v1(4 * GIB), 2 * GIB),
    ],
)
def test_free_memory_of_a_cpu(tmp_path, files, expected):
    assert free_memory(torch.device("cpu"), machine(tmp_path, **files)) == expected


def test_free_memory_of_this_machine():
    assert free_memory(torch.device("cpu")) > 0
