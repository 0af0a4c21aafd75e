"""Runs one of the benches and keeps its last line in bench/results/, with what it depends on.

    python -m bench.record ttft --rounds 5

appends to bench/results/ttft.jsonl: date, commit, machine, command, result. The machine is told by
its processor, cores, GPU and torch, never by its name.
"""

import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"


def output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def commit() -> str:
    """Short hash, with `+` if the working tree has changes in what is measured."""
    changes = output("git", "status", "--porcelain", "--", ".", ":!bench/results", ":!bench/LOG.md")
    return output("git", "rev-parse", "--short=10", "HEAD") + ("+" if changes else "")


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    gpu = ""
    if shutil.which("nvidia-smi"):
        gpu = output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "torch": importlib.metadata.version("torch"),
        "python": platform.python_version(),
    }


def entry(command: str, result: dict[str, Any]) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": machine(),
        "command": command,
        "result": result,
    }


def unplaced(argument: str) -> str:
    """A command-line argument without the place of a file on this machine: its name is enough."""
    path = Path(argument)
    return path.name if path.is_absolute() else argument


def append(name: str, line: dict[str, Any], folder: Path = RESULTS) -> Path:
    """One more line in the results of `name`; returns the file."""
    file = folder / f"{name}.jsonl"
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
    return file


def main(argv: list[str]) -> int:
    if not argv or argv[0].startswith("-") or not (ROOT / "bench" / f"{argv[0]}.py").exists():
        print("usage: python -m bench.record serve|ttft|scale|compare_transformers [ARGUMENTS...]")
        return 2
    name, *rest = argv
    command = [sys.executable, "-m", f"bench.{name}", *rest]
    last = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None, "stdout was asked for as a pipe"
        for text in bench.stdout:
            print(text, end="", flush=True)
            last = text
    if bench.returncode or not last.startswith("{"):
        print("nothing recorded: the bench failed or was skipped", file=sys.stderr)
        return bench.returncode or 1
    shown = shlex.join(["python", "-m", f"bench.{name}", *map(unplaced, rest)])
    file = append(name, entry(shown, json.loads(last)))
    print(f"recorded in {file.relative_to(ROOT)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
