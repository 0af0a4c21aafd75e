"""How the prefix index and the scheduler behave with size, beside other engines' indexes.

    python -m bench.scale [--rivals PYTHON ...]
    python -m bench.record scale --rivals PYTHON ...

Every index runs in a process of its own (`bench.indexes`) and is asked in turns, a slice of each
operation at a time, all engines and sizes interleaved. Nothing else may run meanwhile. Garbage
collection is on, and for the steps in hand as in production (`scheduler/garbage.py`). Each tree
fills its pool, so whoever takes pages evicts.

    prepare      what the scheduler makes of a prompt once, before the index sees it (vLLM: hashes)
    hit          find and hold 2,000 cached of 2,050 tokens, with their pages
    miss         find nothing of 2,050 tokens
    evict n      take n pages from a full cache; the least recently used go
    commit n     give them to the index
    release      end the hold
    chain        the same along a chain with a fork at every page
    step         order one step and take its result, all rows decode
    admission    that step also admits 2,050 tokens, 2,000 of them cached

`--rivals` names the interpreters of environments that have SGLang or vLLM. Neither needs a GPU, and
their long lists of GPU packages stay out; `ABSENT` in `bench/indexes/` says which imports are
replaced by empty modules. For N = sglang and N = vllm (about 2 GB each, with torch):

    python -m venv E/N
    E/N/bin/pip install torch==2.13.0 numpy
    E/N/bin/pip install --no-deps -r bench/indexes/N.txt
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from bench.indexes import shape
from bench.record import ROOT
from radixserve.scheduler.order import ORDERS

PAGE_SIZE = 16
FIND = (
    "import importlib.util as u; print(*[n for n in ('sglang', 'vllm') if u.find_spec(n)], sep=',')"
)
ENGINES = {"sglang": ("sglang", "sglang-rust"), "vllm": ("vllm",)}
INDEX_WORK = ("hit", "miss", "page", "pages")
CHAIN_WORK = ("shallow", "deep")
Rows = list[dict[str, Any]]


class Died(Exception):
    """A child ended before it answered; the message has its last words."""


class Child:
    """A process of `bench.indexes.child`."""

    def __init__(self, python: str, arguments: Sequence[str], errors: IO[str]) -> None:
        self._errors = errors
        self._process = subprocess.Popen(
            [python, "-m", "bench.indexes.child", *arguments],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )

    def send(self, do: str, **arguments: Any) -> None:
        assert self._process.stdin is not None, "stdin was asked for as a pipe"
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it is gone, which `receive` will say

    def receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "stdout was asked for as a pipe"
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise Died((self._errors.read().strip().splitlines() or ["no word"])[-1])
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None, "stdin was asked for as a pipe"
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None, "stdout was asked for as a pipe"
        self._process.stdout.close()
        self._errors.close()


@dataclass
class Case:
    """One index of one size, and the work to time on it."""

    section: str  # of the report
    engine: str
    at: str  # column of the report
    python: str
    arguments: list[str]
    build: dict[str, Any]
    work: list[dict[str, Any]]
    child: Child | None = None
    samples: dict[str, list[int]] = field(default_factory=dict)  # operation -> ns
    built: dict[str, float] = field(default_factory=dict)

    def add(self, work: dict[str, Any], samples: dict[str, list[int]]) -> None:
        for operation, values in samples.items():
            name = operation
            if "waiting" in work:
                name += f", {work['waiting']:,} waiting"
            self.samples.setdefault(name, []).extend(values)


# ---- what is measured ----------------------------------------------------------------------------


def engines(pythons: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(engine, interpreter): ours, and what the rivals' environments have."""
    yield "ours", sys.executable
    for python in pythons:
        found = subprocess.run([python, "-c", FIND], capture_output=True, text=True, check=True)
        for package in filter(None, found.stdout.strip().split(",")):
            for engine in ENGINES[package]:
                yield engine, python


def groups_of(tokens: int) -> int:
    return max(round(tokens / shape.GROUP_TOKENS), 1)


def label(tokens: int) -> str:
    return f"{tokens / 1e6:g} M"


def index_cases(args: argparse.Namespace) -> list[Case]:
    cases = []
    sizes = [(tokens, PAGE_SIZE) for tokens in args.tokens]
    sizes += [(args.page_one, 1)] if args.page_one else []
    chain = {"do": "build_chain", "depth": args.chain}
    for engine, python in engines(args.rivals):
        for tokens, page_size in sizes:
            at = label(tokens) + (", page 1" if page_size == 1 else "")
            build = {"do": "build", "groups": groups_of(tokens)}
            work = [{"work": name} for name in INDEX_WORK]
            arguments = [engine, str(page_size)]
            cases.append(Case("Index", engine, at, python, arguments, build, work))
        if args.chain:
            at, arguments = f"{args.chain:,} nodes", [engine, str(PAGE_SIZE)]
            work = [{"work": name} for name in CHAIN_WORK]
            cases.append(Case("Chain", engine, at, python, arguments, chain, work))
    return cases


def step_cases(args: argparse.Namespace) -> list[Case]:
    """Our scheduler at every size; with a queue, under every order, at the middle size."""
    cases = []
    middle = args.tokens[len(args.tokens) // 2]
    for tokens in args.tokens:
        build = {"do": "build", "groups": groups_of(tokens)}
        work: list[dict[str, Any]] = [{"work": "step"}, {"work": "admission", "waiting": 0}]
        arguments = ["steps", "default", str(args.rows)]
        engine = f"ours, {args.rows} rows"
        cases.append(
            Case("Scheduler", engine, label(tokens), sys.executable, arguments, build, work)
        )
    build = {"do": "build", "groups": groups_of(middle)}
    for order in args.orders:
        arguments = ["steps", order, str(args.rows)]
        work = [
            {"work": name, "waiting": waiting}
            for name in ("submit", "admission")
            for waiting in args.waiting
        ]
        cases.append(Case("Queue", "ours", order, sys.executable, arguments, build, work))
    return cases


# ---- measuring -----------------------------------------------------------------------------------


def start(cases: list[Case], failed: dict[str, str], progress: IO[str]) -> list[Case]:
    """Build all, two at a time. Returns those that stand; a rival that fails is noted."""
    for first in range(0, len(cases), 2):
        pair = cases[first : first + 2]
        for case in pair:
            errors = open_errors()
            case.child = Child(case.python, case.arguments, errors)
            case.child.send(**case.build)
        for case in pair:
            case.built = answer(case, failed)
            progress.write(f"built {case.section} {case.engine} {case.at}: {case.built}\n")
    return [case for case in cases if case.built]


def open_errors() -> IO[str]:
    """Where a child may complain: not a pipe, which nobody empties."""
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


def answer(case: Case, failed: dict[str, str]) -> dict[str, Any]:
    """The child's answer; empty if it died and is a rival."""
    assert case.child is not None, "a case is asked after it was started"
    try:
        return case.child.receive()
    except Died as reason:
        if case.engine.startswith("ours"):
            raise
        failed[f"{case.engine}, {case.section}, {case.at}"] = str(reason)
        return {}


def measure(cases: list[Case], args: argparse.Namespace, failed: dict[str, str]) -> None:
    """Rounds of slices: every operation on every index before the next round begins."""
    for number in range(args.rounds):
        for place in range(max(len(case.work) for case in cases)):
            for case in cases:
                if place >= len(case.work) or not case.built:
                    continue
                assert case.child is not None, "what stands was started"
                count, seconds = -(-args.count // args.rounds), args.seconds / args.rounds
                work = case.work[place]
                case.child.send("measure", count=count, seconds=seconds, **work)
                samples = answer(case, failed)
                case.built = case.built if samples else {}
                case.add(work, samples)
        sys.stderr.write(f"round {number + 1} of {args.rounds}\n")


# ---- the report ----------------------------------------------------------------------------------


def rows_of(cases: list[Case]) -> Rows:
    """One row for each operation, engine and column; times in microseconds."""
    rows: Rows = []
    for case in cases:
        place = {"section": case.section, "engine": case.engine, "at": case.at}
        for operation, samples in case.samples.items():
            p50, p99, most = (float(np.percentile(samples, q)) / 1e3 for q in (50, 99, 100))
            times = {"p50_us": p50, "p99_us": p99, "max_us": most, "n": len(samples)}
            rows.append({**place, "operation": operation, **times})
    for case in cases:
        if case.section == "Index" and case.built:
            place = {"section": case.section, "engine": case.engine, "at": case.at}
            share = case.built["bytes"] / case.built["tokens"]
            rows.append({**place, "operation": "memory per cached token", "bytes": share})
    return rows


def table(rows: Rows) -> str:
    """Markdown: a table for each section, a line for each operation and engine."""
    parts = []
    for section in dict.fromkeys(row["section"] for row in rows):
        mine = [row for row in rows if row["section"] == section]
        columns = list(dict.fromkeys(row["at"] for row in mine))
        cells = {(row["operation"], row["engine"], row["at"]): cell(row) for row in mine}
        lines = [
            f"### {section}: p50 / p99 in µs\n",
            f"| operation | engine | {' | '.join(columns)} |",
            "|---|---" + "|---:" * len(columns) + "|",
        ]
        for operation in dict.fromkeys(row["operation"] for row in mine):
            for engine in dict.fromkeys(row["engine"] for row in mine):
                values = [cells.get((operation, engine, at), "") for at in columns]
                if any(values):
                    lines.append(f"| {operation} | {engine} | {' | '.join(values)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def cell(row: dict[str, Any]) -> str:
    if "bytes" in row:
        return f"{row['bytes']:.1f} B"
    few = "" if row["n"] >= 1000 else f" ({row['n']})"
    return f"{row['p50_us']:,.1f} / {row['p99_us']:,.1f}{few}"


def run(args: argparse.Namespace) -> dict[str, Any]:
    failed: dict[str, str] = {}
    cases = index_cases(args) + step_cases(args)
    try:
        standing = start(cases, failed, sys.stderr)
        measure(standing, args, failed)
    finally:
        for case in cases:
            if case.child is not None:
                case.child.close()
    return {"rows": rows_of(cases), "failed": failed}


def profile(args: argparse.Namespace) -> str:
    """Where our own time goes in one kind of work, at the first size."""
    if args.profile in CHAIN_WORK:
        arguments, build = ["ours", str(PAGE_SIZE)], {"do": "build_chain", "depth": args.chain}
    else:
        steps = args.profile not in INDEX_WORK
        arguments = ["steps", args.orders[0], str(args.rows)] if steps else ["ours", str(PAGE_SIZE)]
        build = {"do": "build", "groups": groups_of(args.tokens[0])}
    child = Child(sys.executable, arguments, open_errors())
    work = {"waiting": max(args.waiting)} if args.profile in ("admission", "submit") else {}
    try:
        for do in (build, {"do": "profile", "work": args.profile, **work}):
            limits = {"count": args.count, "seconds": args.seconds} if do is not build else {}
            child.send(**do, **limits)
            text = child.receive().get("text", "")
    finally:
        child.close()
    return str(text)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--rivals", nargs="*", default=[], help="interpreters of environments with sglang or vllm")
    add("--tokens", type=numbers, default=[100_000, 1_000_000, 10_000_000], help="cached tokens")
    add("--page-one", type=int, default=1_000_000, help="tokens in pages of one; 0: not measured")
    add("--chain", type=int, default=10_000, help="nodes of the chain; 0: not measured")
    add("--rows", type=int, default=256, help="requests that decode")
    add("--waiting", type=numbers, default=[0, 1000, 10_000], help="lengths of the queue")
    add("--orders", nargs="*", default=list(ORDERS), choices=list(ORDERS), help="of the queue")
    add("--count", type=int, default=1000, help="of each operation on each index")
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=30.0, help="most for an operation on an index, all rounds")
    add("--profile", default="", help="say where our own time goes in one kind of work instead")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.profile:
        print(profile(args))
        return 0
    try:
        result = run(args)
    except Died as reason:
        print(f"our own index failed: {reason}", file=sys.stderr)
        return 1
    print(table(result["rows"]))
    for what, why in result["failed"].items():
        print(f"not measured: {what}: {why}")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
