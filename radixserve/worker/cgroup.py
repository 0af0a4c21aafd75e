"""The limits of the Linux control groups (version 1 or 2) that this process runs in.

A container sees the whole machine's memory and cores; what it may use stands here. Called by
`memory.py` and `resolve.py`. Where there are no control groups, nothing is limited.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
MEMORY = (  # limit, usage, and the part of the usage in memory.stat that can be taken back
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def memory_left(root: Path = ROOT) -> int | None:
    """Bytes until the nearest memory limit, page cache not counted as used; None: no limit."""
    left = [_memory_left(folder, *files) for folder in _folders(root, "memory") for files in MEMORY]
    return min((bytes_ for bytes_ in left if bytes_ is not None), default=None)


def cpu_quota(root: Path = ROOT) -> float | None:
    """The lowest limit on CPU time, in cores; None: no limit."""
    quotas = []
    for folder in _folders(root, "cpu"):
        quota, period = (_read(folder, "cpu.max") or "max 1").split()
        if quota == "max":
            quota = _read(folder, "cpu.cfs_quota_us") or "-1"
            period = _read(folder, "cpu.cfs_period_us") or "1"
        if int(quota) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the groups that limit this process by `controller`, own group first."""
    for line in (_read(root / "proc/self", "cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / controllers  # version 2: no controllers
        own = base / group.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(base))


def _memory_left(folder: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    most, used = _read(folder, limit), _read(folder, usage)
    if most in (None, "max") or used is None:
        return None
    stat = dict(line.split() for line in (_read(folder, "memory.stat") or "").splitlines())
    return max(0, int(most) - int(used) + int(stat.get(reclaimable, 0)))


def _read(folder: Path, name: str) -> str | None:
    try:
        return (folder / name).read_text().strip()
    except OSError:
        return None
