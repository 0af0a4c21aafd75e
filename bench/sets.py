"""How near the scheduler comes to the bound on every recorded set, by simulation.

    python -m bench.sets [SET...] [--users 1,32] [options of python -m radixserve.simulate]

Page size 1 and a cache larger than the tree, unless options say otherwise. Traces are shrunk, which
leaves their hit rates as they are. Prints a table in markdown; each run is one more line in
bench/results/sets.jsonl.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.record import RESULTS, append, entry
from bench.workloads import DATA, TRACES, names
from radixserve.simulate.command import open_study
from radixserve.simulate.options import parse

BLOCKS = {  # tokens per recorded block
    "mooncake_conversation": 16,
    "mooncake_synthetic": 16,
    "agentic_code": 1,
    "azure_code": 32,
    "azure_conv": 32,
}


def runs(name: str, data: Path, more: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(command line, result) for each number of users."""
    shrink = ["--block", str(BLOCKS[name])] if name in BLOCKS else []
    options = [*shrink, *more]
    parsed = parse([str(data / TRACES.get(name, name)), *options])
    study = open_study(parsed)
    shown = shlex.join(["python", "-m", "bench.sets", name, *options])
    for setting in parsed.settings:
        yield shown, {"set": name} | study.play(setting, best=parsed.args.optimum)


def row(results: Sequence[dict[str, Any]]) -> str:
    """Set, requests, prompt tokens and bound, then hit rate and share of the bound for each run."""
    first = results[0]
    cells = [first["set"], f"{first['requests']:,}", f"{first['prompt_tokens']:,}"]
    cells.append(f"{100 * first['bound']:.2f}")
    for result in results:
        most = result["bound_tokens"]
        share = f"{100 * result['cached_tokens'] / most:.2f}" if most else "-"
        cells += [f"{100 * result['hit_rate']:.2f}", share]
    return f"| {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sets", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("sets", nargs="*", metavar="SET", help="default: all that are there")
    parser.add_argument("--users", default="1,32")
    parser.add_argument("--page-size", default="1")
    parser.add_argument("--data", type=Path, default=DATA, help="default: ../shared/data")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of sets.jsonl")
    args, more = parser.parse_known_args(argv)
    there = names(args.data)
    if unknown := set(args.sets).difference(there):
        parser.error(f"no set {', '.join(sorted(unknown))} in {args.data}: {', '.join(there)}")
    more = ["--users", args.users, "--page-size", args.page_size, *more]
    users = args.users.split(",")
    headings = ["set", "requests", "prompt tokens", "bound %"]
    headings += [text for n in users for text in (f"hit %, {n} users", "of the bound, %")]
    print(f"| {' | '.join(headings)} |\n|---{'|---:' * (len(headings) - 1)}|")
    for name in tqdm(args.sets or there, unit="set", disable=None, file=sys.stderr):
        results = []
        for command, result in runs(name, args.data, more):
            results.append(result)
            append("sets", entry(command, result), args.results)
        print(row(results), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
