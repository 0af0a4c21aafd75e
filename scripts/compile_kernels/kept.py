"""What need not be compiled again: digests of all that a report depends on, and two stores.

build/ has a file for every report made here; `Record` is the one that is committed.
"""

import ast
import hashlib
import json
import tempfile
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from compile_kernels.forms import Launch
from compile_kernels.reports import Report

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "compile-kernels"
RECORD = ROOT / "bench" / "results" / "compile-kernels.jsonl"
PACKAGE = "radixserve_kernels"
FORMAT = 1  # another one where reports of the same code would differ from those that are kept


def digest_of(launch: Launch, target: str, release: str, root: Path = ROOT) -> str:
    """Hexadecimal; of the kernel's sources, and of what it is compiled with, for and by."""
    sources = {path.name: path.read_text() for path in device_sources(module_of(launch), root)}
    parts = [FORMAT, sources, launch.signature(), launch.constants, launch.options, target, release]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def module_of(launch: Launch) -> str:
    name: str = launch.kernel.fn.__module__
    return name


@cache
def device_sources(module: str, root: Path) -> list[Path]:
    """The module's file and those it imports from the package, directly or not, that use triton.

    What other modules give it reaches the compiler as constants and options only.
    """
    found, waiting = {}, [module]
    while waiting:
        name = waiting.pop()
        path = (root / name.replace(".", "/")).with_suffix(".py")
        if name in found or not path.is_file():
            continue
        names = imported(path.read_text())
        found[name] = path if any(n.partition(".")[0] == "triton" for n in names) else None
        waiting += [n for n in names if n.startswith(f"{PACKAGE}.")]
    return sorted(path for path in found.values() if path is not None)


def imported(source: str) -> set[str]:
    """Names that a module imports; of `from a import b` both a and a.b, either may be a module."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def replace(path: Path, text: str) -> None:
    """In one go: another process may be reading the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def kept(digest: str) -> Report | None:
    path = BUILD / f"{digest}.json"
    return Report(**json.loads(path.read_text())) if path.is_file() else None


def keep(digest: str, report: Report) -> None:
    replace(BUILD / f"{digest}.json", json.dumps(asdict(report)))


class Record:
    """The committed reports: a line of JSON for each variant, target and release of triton."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.is_file() else []
        self._lines: dict[tuple[str, str, str], dict[str, Any]] = {}
        for line in map(json.loads, lines):
            self._lines[line["target"], line["triton"], line["variant"]] = line
        self._reports = {line["digest"]: Report(**line["report"]) for line in self._lines.values()}

    def knows(self, target: str, release: str) -> bool:
        """Whether there is any report of this release for this target."""
        return any(key[:2] == (target, release) for key in self._lines)

    def report(self, digest: str) -> Report | None:
        """The report with this digest, under whatever name it was read from the file."""
        return self._reports.get(digest)

    def add(self, variant: str, target: str, release: str, digest: str, report: Report) -> None:
        self._lines[target, release, variant] = {
            "variant": variant,
            "target": target,
            "triton": release,
            "digest": digest,
            "report": asdict(report),
        }

    def drop_others(self, target: str, release: str, variants: set[str]) -> None:
        """Forgets the variants of a target and release that are not among these."""
        for key in list(self._lines):
            if key[:2] == (target, release) and key[2] not in variants:
                del self._lines[key]

    def write(self) -> None:
        lines = [json.dumps(self._lines[key]) for key in sorted(self._lines)]
        replace(self._path, "".join(f"{line}\n" for line in lines))
