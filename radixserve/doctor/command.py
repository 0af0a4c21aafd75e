"""The command: `radixserve doctor [--json] [flags of serve]`."""

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain

from radixserve.doctor.finding import Finding, fail
from radixserve.doctor.packages import packages, python


def parser() -> argparse.ArgumentParser:
    """The flags of the server, and how to print."""
    from radixserve.config import parser
    from radixserve.launch import FLAGS

    p = parser(FLAGS)
    p.prog = "radixserve doctor"
    p.description = "Checks whether the server can run here with these flags."
    p.add_argument("--json", action="store_true", help="print one JSON object at the end")
    return p


def asked(argv: Sequence[str]) -> tuple[Iterator[Finding], bool]:
    """The checks that need the server's own code, and whether to print JSON.

    Ends the program with a message on a wrong flag.
    """
    try:
        from radixserve.config import chosen
        from radixserve.doctor.checks import Examination

        p = parser()
    except ImportError as error:
        return iter([fail("packages", str(error), "all other checks wait for it")]), False
    args = p.parse_args(argv)
    return Examination(chosen(p, args)).findings(), args.json


def main(argv: Sequence[str]) -> int:
    """0 if nothing fails, else 1; 2 for a wrong flag."""
    logging.basicConfig(level="INFO", format="%(message)s")  # a model that is converted says so
    examined, as_json = asked(argv)
    all_findings = []
    for finding in chain(python(), packages(), examined):
        all_findings.append(finding)
        if not as_json:
            sys.stdout.write(f"{finding}\n")
            sys.stdout.flush()
    failed = any(finding.state == "fail" for finding in all_findings)
    if as_json:
        report = {"ok": not failed, "findings": [asdict(finding) for finding in all_findings]}
        sys.stdout.write(json.dumps(report) + "\n")
    return int(failed)
