"""The command line of scripts/conformance."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence

from conform.install import installed
from conform.results import Report, judged, read_excuses, table
from conform.server import NotThere, Target, found, started
from conform.suites import SUITES, Suite, run


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="conformance", description="Runs public suites of tests against a server."
    )
    parser.add_argument("--url", help="of a server that runs; default: start servers of our own")
    parser.add_argument("--api-key", default="", help="that the server at --url asks for")
    parser.add_argument("--port", type=int, default=0, help="of our own servers; default: any")
    parser.add_argument(
        "--suite",
        nargs="+",
        default=list(SUITES),
        metavar="NAME",
        help=f"which to run, by the beginning of its name; of: {', '.join(SUITES)}",
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each suite")
    parser.epilog = "Flags after -- go to our own servers: -- --model-path FOLDER --num-threads 1"
    at = argv.index("--") if "--" in argv else len(argv)
    given = parser.parse_args(argv[:at])
    given.flags = argv[at + 1 :]
    chosen = [name for name in SUITES if name.startswith(tuple(given.suite))]
    if wrong := [start for start in given.suite if not any(n.startswith(start) for n in SUITES)]:
        parser.error(f"no suite is named {wrong[0]}")
    if given.url:
        given.url = given.url.rstrip("/").removesuffix("/v1")
    given.suite = chosen
    return given


@contextlib.contextmanager
def target(given: argparse.Namespace, suite: Suite) -> Iterator[Target]:
    """The server for a suite. Raises NotThere."""
    if given.url:
        yield found(given.url, given.api_key)
        return
    flags = [*suite.flags, *given.flags]
    print(f"starting a server with {' '.join(flags)}", file=sys.stderr, flush=True)
    with started(flags, suite.key, given.port) as server:
        yield server


def report(
    name: str, given: argparse.Namespace, excuses: Mapping[str, Mapping[str, str]]
) -> Report:
    suite = SUITES[name]
    commands = installed()
    try:
        with target(given, suite) as server:
            print(f"running {name}", file=sys.stderr, flush=True)
            checks, broken = run(name, suite, server, commands)
    except NotThere as error:
        checks, broken = [], str(error)
    return judged(Report(name, checks, broken), excuses.get(name, {}))


def main(argv: Sequence[str]) -> int:
    given = arguments(argv)
    excuses = read_excuses()
    reports = []
    for name in given.suite:
        reports.append(report(name, given, excuses))
        if given.json:
            print(json.dumps(reports[-1].as_json()), flush=True)
    if not given.json:
        print(table(reports))
    return 0 if all(report.good for report in reports) else 1
