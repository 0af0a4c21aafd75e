"""`scripts/gpu-check`: chooses sections, starts the process that runs them, and outlives it.

A fault on the device costs a process all it could still do there, and a kernel may never end. So
when the process dies, loses the device or hangs, the sections behind the one it was in are given
to a new one.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.report import FILE, Report, Row
from bench.gpu.run import BUDGET, SECTIONS

ROOT = Path(__file__).parents[2]
STATE = "state.json"
FILES = (STATE, "facts.json", "errors.txt", FILE)  # of an earlier run
POLL_SECONDS = 0.1
START_SECONDS = 120.0  # for imports, before the first section begins
NO_END = 1e9  # seconds: a dry run is not cut


def arguments(argv: Sequence[str], out: str) -> argparse.Namespace:
    """`out`: where results go without --out."""
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--dry-run", action="store_true", help="toy sizes in Triton's interpreter, no GPU")
    add("--budget", type=float, help=f"seconds, {BUDGET:.0f} if not given; a dry run has no end")
    add("--only", default=",".join(SECTIONS), help="some of: %(default)s")
    add("--out", type=Path, default=Path(out), help="folder of the results (%(default)s)")
    add("--commit", default="", help="what to call this tree, where git cannot tell")
    args = parser.parse_args(argv)
    asked = args.only.split(",")
    if unknown := [name for name in asked if name not in SECTIONS]:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    # everything that is timed needs the ceilings, and the goals come last
    args.sections = [name for name in SECTIONS if name in (*asked, "ceilings")]
    args.budget = args.budget or (NO_END if args.dry_run else BUDGET)
    return args


def main(argv: Sequence[str], out: str) -> int:
    args = arguments(argv, out)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (args.out / name).unlink(missing_ok=True)
    child = [sys.executable, "-m", "bench.gpu.run", "--out", str(args.out.resolve())]
    child += ["--command", shlex.join(["scripts/gpu-check", *_unplaced(argv)])]
    child += ["--commit", args.commit] if args.commit else []
    child += ["--dry-run"] if args.dry_run else []
    code = supervise(child, args.sections, time.time() + args.budget, args.out)
    print(f"results: {args.out / FILE}", flush=True)
    return code


def _unplaced(argv: Sequence[str]) -> list[str]:
    """The arguments without the places of files on this machine."""
    return [Path(text).name if Path(text).is_absolute() else text for text in argv]


def supervise(child: Sequence[str], sections: Sequence[str], ends: float, out: Path) -> int:
    """Run `child` with `--sections` and `--ends`, again for those behind one that it died in.

    Returns 0 if all is well, 1 if something differs or failed.
    """
    left = list(sections)
    bad = 0
    while left:
        (out / STATE).unlink(missing_ok=True)
        process = subprocess.Popen(
            [*child, "--sections", ",".join(left), "--ends", repr(ends)], cwd=ROOT
        )
        code = _wait(process, out)
        if code in (0, 1):
            return bad or code
        bad = 1
        begun = _state(out).get("section") or left[0]
        note = f"ended with {code}, going on behind {begun}"
        Report(out, {}).add(Row(section=begun, name="process", verdict="failed", note=note))
        left = left[left.index(begun) + 1 :]
    return bad


def _wait(process: "subprocess.Popen[bytes]", out: Path) -> int:
    """Its exit status. It is killed if it is still in a section when that is long over."""
    started = time.time()
    while (code := process.poll()) is None:
        if time.time() > _state(out).get("kill_at", started + START_SECONDS):
            process.kill()
            return process.wait()
        time.sleep(POLL_SECONDS)
    return code


def _state(out: Path) -> dict[str, Any]:
    file = out / STATE
    if not file.exists():
        return {}
    state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return state
