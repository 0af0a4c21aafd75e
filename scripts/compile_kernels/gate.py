"""Compiles what was asked for, in several processes, and prints a line for each report in order.

A report that stands in build/ is not made again. At the end a line for each target sums it up.
"""

import argparse
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field

import triton

from compile_kernels import kept
from compile_kernels.forms import FORMS, Launch, Variant, core, everything
from compile_kernels.reports import Report, faults, report_of

RELEASE: str = triton.__version__
HEADER = f"{'variant':40} {'target':7} regs spill shared  wide/loads matrix"


@dataclass(frozen=True)
class Case:
    """One variant for one target. `known`: its report is in the record, and need not be shown."""

    variant: Variant
    target: str
    launch: Launch
    digest: str
    known: Report | None = None


@dataclass
class Totals:
    """Of one target, over all variants that have a report."""

    variants: int = 0
    spilled: int = 0
    registers: int = 0
    shared: int = 0
    matrix: Counter[str] = field(default_factory=Counter)

    def count(self, report: Report) -> None:
        self.variants += 1
        self.spilled += report.spilled > 0
        self.registers = max(self.registers, report.registers)
        self.shared = max(self.shared, report.shared)
        self.matrix[report.matrix] += 1

    def __str__(self) -> str:
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(self.matrix.items()))
        return (
            f"{self.variants} variants, {self.spilled} spill, at most {self.registers} registers "
            f"and {self.shared} bytes of shared memory; matrix: {kinds or 'none'}"
        )


def case_of(variant: Variant, target: str) -> Case:
    launch = FORMS[variant.form].launch(variant, target)
    return Case(variant, target, launch, kept.digest_of(launch, target, RELEASE))


def cases(given: argparse.Namespace, record: kept.Record) -> Iterator[Case]:
    """What the arguments ask for, each once.

    With --changed a target that the record has nothing of, for this release, gets the core alone.
    """
    always = list(core())
    for variant in everything() if given.all or given.changed else always:
        for target in given.target:
            compared = given.changed and not given.all and variant not in always
            if compared and not record.knows(target, RELEASE):
                continue
            case = case_of(variant, target)
            known = record.report(case.digest) if compared else None
            yield Case(variant, target, case.launch, case.digest, known)


def make_report(variant: Variant, target: str) -> Report:
    """Runs in a process of the pool."""
    case = case_of(variant, target)
    report = report_of(case.launch, target)
    kept.keep(case.digest, report)
    return report


def begin(case: Case, pool: ProcessPoolExecutor) -> Future[Report]:
    report = case.known or kept.kept(case.digest)
    if report is None:
        return pool.submit(make_report, case.variant, case.target)
    done: Future[Report] = Future()
    done.set_result(report)
    return done


def line(case: Case, report: Report | None, wrong: list[str]) -> str:
    start = f"{case.variant!s:40} {case.target:7}"
    if report is None:
        return f"{start} {'; '.join(wrong)}"
    loads = f"{report.wide}/{report.loads}"
    return (
        f"{start} {report.registers:4} {report.spilled:5} {report.shared:6} {loads:>11} "
        f"{report.matrix:15} {'; '.join(wrong)}"
    ).rstrip()


def finish(case: Case, future: Future[Report]) -> tuple[Report | None, list[str]]:
    """The report and its faults; that there is none is a fault."""
    try:
        report = future.result()
    except Exception as error:
        first = (str(error).strip() or "without a word").splitlines()[0]
        return None, [f"does not compile: {type(error).__name__}: {first}"]
    return report, faults(report, case.launch, case.target)


def update(record: kept.Record, made: list[tuple[Case, Report]], given: argparse.Namespace) -> None:
    for case, report in made:
        record.add(str(case.variant), case.target, RELEASE, case.digest, report)
    if given.all or given.changed:
        names = {str(variant) for variant in everything()}
        for target in given.target:
            record.drop_others(target, RELEASE, names)
    record.write()


def run(given: argparse.Namespace) -> int:
    """The exit status: 1 if any report has a fault."""
    record = kept.Record(kept.RECORD)
    totals = {target: Totals() for target in given.target}
    made, failed = [], 0
    print(f"triton {RELEASE}\n{HEADER}", flush=True)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=spawn) as pool:
        for case, future in [(case, begin(case, pool)) for case in cases(given, record)]:
            report, wrong = finish(case, future)
            failed += bool(wrong)
            if report is not None:
                totals[case.target].count(report)
                made.append((case, report))
            if wrong or not case.known:
                print(line(case, report, wrong), flush=True)
    for target, total in totals.items():
        print(f"triton {RELEASE}, {target}: {total}")
    if given.record:
        update(record, made, given)
    return 1 if failed else 0
