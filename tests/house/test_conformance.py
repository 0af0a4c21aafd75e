"""scripts/conformance without its suites: arguments, judging, reports, and what does not fit."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conform import command, suites
from conform.results import (
    FAILED,
    PASSED,
    SKIPPED,
    Check,
    Report,
    judged,
    read_excuses,
    reason,
    table,
)
from conform.server import NotThere, Target, found
from conform.suites import SUITES, Place, Suite

TARGET = Target("http://127.0.0.1:9", "", "m", "folder")


def test_every_excuse_is_of_a_suite_and_has_a_reason() -> None:
    excuses = read_excuses()
    assert excuses.keys() <= SUITES.keys()
    for names in excuses.values():
        for name, why in names.items():
            assert name and "*" not in name[:-1], "a star stands at the end alone"
            assert len(why.split()) > 3, f"{name}: say why"


def test_excuses() -> None:
    excuses = {"a": "alone", "b*": "all of b", "b[1*": "one of b"}
    assert [reason(n, excuses) for n in ("a", "ab", "b", "b[2]", "b[1]")] == [
        "alone",
        "",
        "all of b",
        "all of b",
        "one of b",
    ]


def test_only_failures_are_excused() -> None:
    checks = [Check("a", PASSED), Check("b", FAILED, "x"), Check("c", FAILED, "y")]
    report = judged(Report("s", checks), {"a": "why a", "b": "why b"})
    assert report.checks == [Check("a", PASSED), Check("b", SKIPPED, "why b"), checks[2]]
    assert not report.good
    assert judged(Report("s", checks[:2]), {"b": "why b"}).good
    assert judged(Report("s", []), {}).broken, "a suite that ran nothing proves nothing"
    assert not judged(Report("s", checks[:1], "died"), {}).good


def test_table_and_json() -> None:
    checks = [Check("a", PASSED), Check("b", SKIPPED, "w"), Check("c", SKIPPED, "w")]
    reports = [Report("one", checks), Report("two", [Check("d", FAILED, "bad")], "died")]
    text = table(reports)
    assert "| one | 1 | 0 | 2 |" in text and "| two | 0 | 1 | 0 |" in text
    assert "failed: two: d: bad" in text and "broken: two: died" in text
    assert "skipped: one: b, c: w" in text
    many = [Check(name, SKIPPED, "w") for name in "abcd"]
    assert "skipped: one: 4 checks: w" in table([Report("one", many)])
    assert reports[1].as_json() == {
        "suite": "two",
        "passed": 0,
        "failed": {"d": "bad"},
        "skipped": {},
        "broken": "died",
    }


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.arguments([]).suite == list(SUITES)
    given = command.arguments(["--url", "http://h:1/v1/", "--suite", "llm-comply", "giraffe"])
    assert given.url == "http://h:1"
    assert given.suite == [n for n in SUITES if n.startswith(("llm-comply", "giraffe"))]
    assert len(given.suite) == 4
    with pytest.raises(SystemExit):
        command.arguments(["--suite", "giraffe", "nothing"])
    assert "no suite is named nothing" in capsys.readouterr().err


def started_by(checks: Sequence[Check], asked: list[Sequence[str]], patch: Any) -> None:
    """`main` with one suite that finds `checks`, and no real server or installation."""

    @contextmanager
    def no_server(flags: Sequence[str], key: str, port: int) -> Iterator[Target]:
        asked.append([*flags, key])
        yield TARGET

    patch.setattr(command, "started", no_server)
    patch.setattr(command, "installed", lambda: Path("nowhere"))
    patch.setitem(SUITES, "fake", Suite(lambda target, place: [*checks], ("--flag",), 9, "secret"))


@pytest.mark.parametrize(("status", "code"), [(PASSED, 0), (FAILED, 1), (SKIPPED, 0)])
def test_the_exit_status_tells_of_failures(
    status: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Sequence[str]] = []
    started_by([Check("a", status, "x")], asked, monkeypatch)
    assert command.main(["--suite", "fake", "--json", "--", "--model-path", "m"]) == code
    assert asked == [["--flag", "--model-path", "m", "secret"]]
    told = json.loads(capsys.readouterr().out)
    assert told["suite"] == "fake" and told["passed"] == (status == PASSED)


def test_no_server_and_no_end_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NotThere):
        found("http://127.0.0.1:9", "")
    suite = Suite(lambda *_: json.loads("no report"), (), 9)
    assert "cannot be read" in suites.run("s", suite, TARGET, tmp_path)[1]

    def sleeps(target: Target, place: Place) -> list[Check]:
        suites.call([sys.executable, "-c", "import time; time.sleep(60)"], place)
        return []

    began = time.monotonic()
    assert "not done within" in suites.run("s", Suite(sleeps, (), 0.5), TARGET, tmp_path)[1]
    assert time.monotonic() - began < 30


def test_reports_in_junits_form(tmp_path: Path) -> None:
    report = tmp_path / "x.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="unit.test_a" name="good"/>'
        '<testcase classname="unit.test_a" name="bad"><failure message="no  way"/></testcase>'
        '<testcase name="broken"><error>text</error></testcase>'
        '<testcase name="left"><skipped message="why"/></testcase>'
        "</testsuite></testsuites>"
    )
    assert suites.junit(report) == [
        Check("test_a::good", PASSED),
        Check("test_a::bad", FAILED, "no way"),
        Check("broken", FAILED, "text"),
        Check("left", SKIPPED, "why"),
    ]


@pytest.mark.parametrize(
    ("status", "failed", "name", "judged_as"),
    [
        ("pass", 0, "prefix", PASSED),
        ("fail", 0, "prefix (answers)", FAILED),
        ("fail", 1, "prefix", FAILED),
        ("inconclusive", 0, "prefix", SKIPPED),
    ],
)
def test_wrong_answers_are_told_from_failed_requests(
    status: str, failed: int, name: str, judged_as: str
) -> None:
    told = {"id": "prefix", "status": status, "summary": "s", "metrics": {"failed": failed}}
    assert suites._giraffe_check(told) == Check(name, judged_as, "s")
    assert bool(reason(name, read_excuses()["giraffe"])) == (name != "prefix")


def test_what_fails_by_chance_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only the failed ones, and no more than `TRIES` times."""
    asked: list[str] = []

    def answer(line: Sequence[object], place: Place) -> str:
        names = str(line[-1]).split(",") if "-f" in line else ["a", "b", "c"]
        asked.append(",".join(names))
        status = {"a": "passed", "b": "failed", "c": "passed" if len(asked) == 2 else "failed"}
        return json.dumps(
            {"results": [{"id": n, "status": status[n], "errors": [f"{n}!"]} for n in names]}
        )

    monkeypatch.setattr(suites, "call", answer)
    checks = suites.llm_comply("anthropic", TARGET, Place(tmp_path, tmp_path, 9))
    assert asked == ["a,b,c", "b,c", "b"]
    assert [(c.name, c.status) for c in checks] == [("a", PASSED), ("b", FAILED), ("c", PASSED)]
