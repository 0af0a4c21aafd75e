"""The suites: how each is run against a server, and what its report says."""

import json
import os
import signal
import subprocess
import tempfile
import xml.etree.ElementTree
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from conform import llama_cpp
from conform.install import llama_cpp_tests
from conform.results import FAILED, PASSED, SKIPPED, Check
from conform.server import Target

TRIES = 3  # of what llm-comply asks: a small model may not come to an end within its limit
EXAMPLES = 20  # of schemathesis for each operation
SEED = 1
DETAIL = 300  # characters
ERRORS = "stderr.txt"  # in the folder of a run


class Place(NamedTuple):
    """`commands`: where those of the suites are; `work`: a folder for this run; seconds to end."""

    commands: Path
    work: Path
    timeout: float


class Suite(NamedTuple):
    """`flags`: of the server it wants, beyond what the embedded model needs."""

    run: Callable[[Target, Place], list[Check]]
    flags: tuple[str, ...]
    timeout: float
    key: str = ""  # that the server asks for


def call(
    command: Sequence[str | Path],
    place: Place,
    *,
    cwd: Path | None = None,
    **variables: str,
) -> str:
    """Its stdout. TimeoutExpired after `place.timeout`; nothing that it started outlives it."""
    with (
        (place.work / ERRORS).open("ab") as errors,
        subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd or place.work,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            return process.communicate(timeout=place.timeout)[0]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def short(text: object) -> str:
    return " ".join(str(text).split())[:DETAIL]


def llm_comply(dialect: str, target: Target, place: Place) -> list[Check]:
    """What failed is tried again: an answer that meets the limit of its length fails a check."""
    command: list[str | Path] = [
        place.commands / "llm-comply",
        "-u",
        f"{target.url}/v1",
        "-m",
        target.model,
    ]
    command += ["-k", target.key or "none", "--format", dialect, "--timeout", "300", "--json"]
    found: dict[str, Check] = {}
    for _ in range(TRIES):
        again = [name for name, check in found.items() if check.status == FAILED]
        if found and not again:
            break
        told = json.loads(call([*command, *(["-f", ",".join(again)] if again else [])], place))
        for one in told["results"]:
            status = one["status"] if one["status"] in (PASSED, SKIPPED) else FAILED
            detail = short("; ".join(one.get("errors") or ()))
            found[one["id"]] = Check(one["id"], status, detail)
    return list(found.values())


GIRAFFE_CHECKS = (
    "access,serving,first_output,generation,context,correctness,json,cancellation,recovery,prefix,"
    "sessions,consistency,tools"
)
GIRAFFE_STATUS = {"pass": PASSED, "fail": FAILED}  # other ones say that nothing was found out


def giraffe(target: Target, place: Place) -> list[Check]:
    """Small figures, and not its `load`: it is to say what is right, not how fast it is."""
    config, command = place.work / "giraffe.json", place.commands / "giraffe"
    where = ["--url", f"{target.url}/v1", "--model", target.model]
    call([command, "run", *where, "--checks", GIRAFFE_CHECKS, "--save-config", config], place)
    config.write_text(json.dumps(_giraffe_settings(json.loads(config.read_text()), target, place)))
    home = place.work / "giraffe"  # it keeps notes on models in its user's folders
    call(
        [command, "run", "--config", config, "--output", home / "report"],
        place,
        XDG_CACHE_HOME=str(home),
        HF_HOME=str(home),
        CONFORMANCE_KEY=target.key,
    )
    report = json.loads((home / "report" / "report.json").read_text())
    return [_giraffe_check(one) for one in report["checks"] if one["required"]]


def _giraffe_check(told: Mapping[str, Any]) -> Check:
    """What failed although no request did is called by another name: the model answered wrongly."""
    status = GIRAFFE_STATUS.get(told["status"], SKIPPED)
    answers = status == FAILED and told["metrics"].get("failed") == 0
    name = f"{told['id']} (answers)" if answers else told["id"]
    return Check(name, status, short(told["summary"]))


def _giraffe_settings(settings: dict[str, Any], target: Target, place: Place) -> dict[str, Any]:
    server = settings["targets"][0]
    server["tokenizer"] = target.model_path
    if target.key:
        server["api_key_env"] = "CONFORMANCE_KEY"
    settings |= {
        "max_duration_seconds": int(place.timeout * 0.8),
        "request_timeout_seconds": 120,
        "samples": 5,
        "max_output_tokens": 24,
        "context_limit": 2048,
    }
    settings["prefix"]["prefix_chars"] = 2048
    settings["consistency"] |= {"repetitions": 2, "prompts_per_shape": 2, "shapes": ["short"]}
    settings["limits"] |= {"first_output_ms": 60_000, "latency_ms": 120_000}
    return settings


def schemathesis(target: Target, place: Place) -> list[Check]:
    """No request that its document allows, or nearly, may end in a 5xx."""
    report = place.work / "schemathesis.xml"
    command: list[str | Path] = [
        place.commands / "schemathesis",
        "run",
        f"{target.url}/openapi.json",
    ]
    command += ["--checks", "not_a_server_error", "--max-examples", str(EXAMPLES)]
    command += ["--seed", str(SEED), "--no-shrink", "--request-timeout", "120"]
    command += ["--header", f"authorization: Bearer {target.key or 'none'}"]
    command += ["--generation-database", "none", "--report-junit-path", str(report)]
    call(command, place)
    return junit(report)


def junit(report: Path) -> list[Check]:
    """The checks of a report in JUnit's form."""
    checks = []
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        told = {child.tag: child for child in case}
        fault = next((told[tag] for tag in ("failure", "error") if tag in told), None)
        status = FAILED if fault is not None else SKIPPED if "skipped" in told else PASSED
        said = fault if fault is not None else told.get("skipped")
        detail = "" if said is None else short(said.get("message") or said.text or "")
        place = case.get("classname", "").rpartition(".")[2]
        name = case.get("name", "")
        checks.append(Check(f"{place}::{name}" if place else name, status, detail))
    return checks


def canitoolcall(target: Target, place: Place) -> list[Check]:
    """Calls over HTTP; what its fixtures say of the parser is a test in tests/parsing."""
    report = place.work / "canitoolcall.json"
    command: list[str | Path] = [
        place.commands / "canitoolcall",
        "probe",
        "--base-url",
        f"{target.url}/v1",
    ]
    command += ["--model", target.model, "--timeout", "300", "--concurrency", "2"]
    call([*command, "--json", report], place, CANITOOLCALL_API_KEY=target.key)
    told: Mapping[str, Any] = json.loads(report.read_text())
    return [
        Check(
            f"{one['scenario_id']} {one['check']} {'stream' if one['stream'] else 'whole'}",
            {"pass": PASSED, "skip": SKIPPED}.get(one["status"], FAILED),
            short(one["detail"] or ""),
        )
        for one in told["outcomes"]
    ]


def llama(target: Target, place: Place) -> list[Check]:
    """llama.cpp's own tests of its server, those that are not about its model and its routes."""
    folder, report = llama_cpp_tests(place.commands), place.work / "llama_cpp.xml"
    command = llama_cpp.command(place.commands, report)
    call(command, place, cwd=folder, **llama_cpp.environment(target))
    return junit(report)


SHORT = ("--default-max-tokens", "64")
COMPLY = ("--default-max-tokens", "256", "--strict-fields", "--unreadable-parts", "placeholder")
SUITES: dict[str, Suite] = {
    "llm-comply openai-chat": Suite(partial(llm_comply, "openai-chat"), COMPLY, 1800),
    "llm-comply open-responses": Suite(partial(llm_comply, "open-responses"), COMPLY, 1800),
    "llm-comply anthropic": Suite(partial(llm_comply, "anthropic"), COMPLY, 1800),
    "canitoolcall": Suite(canitoolcall, SHORT, 1200),
    "giraffe": Suite(giraffe, SHORT, 1500),
    "schemathesis": Suite(
        schemathesis, ("--context-length", "64", "--default-max-tokens", "4"), 1200
    ),
    "llama.cpp": Suite(llama, (*SHORT, *llama_cpp.FLAGS), 1800, llama_cpp.KEY),
}


def run(name: str, suite: Suite, target: Target, commands: Path) -> tuple[list[Check], str]:
    """The checks, and why they are not all there, if so."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        place = Place(commands, Path(folder), suite.timeout)
        try:
            return suite.run(target, place), ""
        except subprocess.TimeoutExpired:
            return [], f"not done within {suite.timeout:.0f} seconds"
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            xml.etree.ElementTree.ParseError,
        ) as error:
            errors = place.work / ERRORS
            said = errors.read_text(errors="replace")[-DETAIL:] if errors.exists() else ""
            why = f"{type(error).__name__}: {short(error)}; {short(said)}"
            return [], f"its report cannot be read: {why}"
