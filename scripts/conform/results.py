"""What a suite found, and which failures are excused, with the reason."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
FEW = 3  # checks that are told by their names where they were skipped for one reason
EXCUSES = Path(__file__).with_name("not_applicable.toml")


class Check(NamedTuple):
    """One check of a suite. `detail`: what failed, or why it was skipped."""

    name: str
    status: str
    detail: str = ""


class Report(NamedTuple):
    """All checks of a suite. `broken`: why it did not run to its end, "" if it did."""

    suite: str
    checks: Sequence[Check]
    broken: str = ""

    def of(self, status: str) -> list[Check]:
        return [check for check in self.checks if check.status == status]

    @property
    def good(self) -> bool:
        return not self.broken and not self.of(FAILED)

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"suite": self.suite, PASSED: len(self.of(PASSED))}
        for status in (FAILED, SKIPPED):
            told[status] = {check.name: check.detail for check in self.of(status)}
        return told | ({"broken": self.broken} if self.broken else {})


def read_excuses(path: Path = EXCUSES) -> dict[str, dict[str, str]]:
    """Suite -> name of a check, or the beginning of names before a `*` -> why it does not fit."""
    table: dict[str, dict[str, str]] = tomllib.loads(path.read_text())
    return table


def reason(name: str, excuses: Mapping[str, str]) -> str:
    """Why the check `name` does not fit; "" if it does."""
    if name in excuses:
        return excuses[name]
    starts = [key for key in excuses if key.endswith("*") and name.startswith(key[:-1])]
    return excuses[max(starts, key=len)] if starts else ""


def judged(report: Report, excuses: Mapping[str, str]) -> Report:
    """The same with excused failures as skipped."""
    checks = [
        Check(check.name, SKIPPED, why)
        if check.status == FAILED and (why := reason(check.name, excuses))
        else check
        for check in report.checks
    ]
    broken = report.broken or ("" if checks else "it ran no checks")
    return report._replace(checks=checks, broken=broken)


def table(reports: Sequence[Report]) -> str:
    """A row for each suite in Markdown, then the failures, and why checks were skipped."""
    rows = ["| suite | passed | failed | skipped |", "|---|---|---|---|"]
    for report in reports:
        counts = [str(len(report.of(status))) for status in (PASSED, FAILED, SKIPPED)]
        rows.append(f"| {report.suite} | {' | '.join(counts)} |")
    for report in reports:
        if report.broken:
            rows.append(f"\nbroken: {report.suite}: {report.broken}")
        rows += [f"\nfailed: {report.suite}: {c.name}: {c.detail}" for c in report.of(FAILED)]
    for report in reports:
        grouped: dict[str, list[str]] = {}
        for check in report.of(SKIPPED):
            grouped.setdefault(check.detail, []).append(check.name)
        for why, names in grouped.items():
            shown = ", ".join(names) if len(names) <= FEW else f"{len(names)} checks"
            rows.append(f"\nskipped: {report.suite}: {shown}: {why}")
    return "\n".join(rows)
