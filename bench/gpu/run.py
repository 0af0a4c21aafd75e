"""Goes through the sections in this process: `python -m bench.gpu.run`, started by `command.py`."""

import argparse
import importlib
import importlib.metadata
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LOST = 3  # exit status: the device answers no more
BUDGET = 470.0  # seconds that the sections' own sum up to


@dataclass(frozen=True)
class Section:
    """Where its function is, and how long it may take of `BUDGET`; unused time goes to the next."""

    module: str
    function: str
    seconds: float  # 0: next to none, and it runs even if no time is left


SECTIONS: dict[str, Section] = {
    "ceilings": Section("bench.gpu.ceilings", "section", 20),
    "correctness": Section("bench.gpu.correct", "section", 80),
    "decode": Section("bench.gpu.attention", "decode", 60),
    "extend": Section("bench.gpu.attention", "extend", 40),
    "products": Section("bench.gpu.products", "section", 40),
    "rivals": Section("bench.gpu.attention", "beside", 50),
    "engine": Section("bench.gpu.engine", "section", 130),
    "tuning": Section("bench.gpu.tuning", "section", 50),
    "goals": Section("bench.gpu.goals", "section", 0),
}


def run_sections(
    check: Any, names: Sequence[str], ends: float, table: Mapping[str, Section]
) -> None:
    """One after another until `ends` (time.time()); each has its share of what is left.

    What a section raises is a row, and costs nobody else, but for DeviceLost.
    """
    begin = time.time()
    total = sum(table[name].seconds for name in names)
    passed = 0.0
    for name in names:
        section = table[name]
        passed += section.seconds
        share = passed / total if total else 1.0
        check.begin(name, begin + (ends - begin) * share if section.seconds else float("inf"))
        print(f"-- {name}, {max(0.0, ends - time.time()):.0f} s left", flush=True)
        check.case(name, "", lambda section=section: _call(check, section), seconds=0)


def _call(check: Any, section: Section) -> None:
    function: Callable[[Any], None] = getattr(
        importlib.import_module(section.module), section.function
    )
    function(check)
    check.free()


def stamp(command: str, commit: str, *, dry: bool) -> dict[str, Any]:
    """What each saved line says beside its row, as `bench.record` has it."""
    from bench import record

    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit or _commit(),
        "machine": record.machine() | {"triton": importlib.metadata.version("triton")},
        "command": command,
        "dry_run": dry,
    }


def _commit() -> str:
    """Empty where there is no git."""
    from bench import record

    try:
        return record.commit()
    except OSError:
        return ""


def interpreter(*, dry: bool) -> AbstractContextManager[None]:
    """In a dry run Triton's interpreter, repaired as the tests of the kernels do."""
    if not dry:
        return nullcontext()
    from radixserve_kernels import interpret

    interpret.enable()  # before anything imports triton
    repair = importlib.import_module("tests.kernels.interpreter_repair")
    repaired: AbstractContextManager[None] = repair.repaired()
    return repaired


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.run", description=__doc__)
    parser.add_argument("--sections", required=True)
    parser.add_argument("--ends", type=float, required=True, help="as time.time()")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--command", default="")
    parser.add_argument("--commit", default="")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args(argv)
    with interpreter(dry=args.dry_run):
        check = make_check(args)
        try:
            run_sections(check, args.sections.split(","), args.ends, SECTIONS)
        except Exception as error:  # DeviceLost, or a bug in this file
            check.row("device", verdict="failed", note=f"{type(error).__name__}: {error}"[:300])
            return LOST
        print(check.report.table(), flush=True)
        return int(check.report.failed)


def make_check(args: argparse.Namespace) -> Any:
    import torch

    from bench.gpu.check import Check, known_facts
    from bench.gpu.report import Report
    from bench.gpu.sizes import REAL, TOY
    from bench.gpu.timing import CudaTimer, HostTimer

    if not args.dry_run and not torch.cuda.is_available():
        sys.exit("there is no GPU that torch can use; --dry-run needs none")
    torch.manual_seed(0)
    if args.dry_run:
        torch.set_num_threads(1)
    return Check(
        device=torch.device("cpu" if args.dry_run else "cuda"),
        sizes=TOY if args.dry_run else REAL,
        timer=HostTimer() if args.dry_run else CudaTimer(),
        report=Report(args.out, stamp(args.command, args.commit, dry=args.dry_run)),
        folder=args.out,
        facts=known_facts(args.out),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
