"""The whole engine in this process, on made-up weights: first tokens, decoding, start-up, idling.

Steps go straight to the runner, two in flight, as the worker process sends them. K/V that a case
takes for cached are random numbers: what is measured does not depend on them.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.gpu.check import Check
from bench.gpu.decoding import decoding, first_token
from bench.gpu.served import Served, config_json

ITEM = 2  # bytes of a bfloat16


def section(check: Check) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(config_json(check.sizes.model), encoding="utf-8")
        served = _start(check, folder, "as usual", check.sizes.batches)
        if served is not None:
            _usual(check, served)
        del served
        check.free()
        same = [case for case in check.sizes.batches if case[2] == 0]
        compared = [case for case in same if case[0] in (1, check.sizes.batch)]
        for kind, changes in (
            ("deterministic", {"enable_deterministic_inference": True}),
            ("without graphs", {"disable_cuda_graph": True}),
        ):
            served = _start(check, folder, kind, compared, **changes)
            if served is not None:
                for case in compared:
                    _decode(check, served, kind, case)
            del served
            check.free()


def _start(check: Check, folder: Path, kind: str, cases: Any, **changes: Any) -> Served | None:
    served = check.case("start", kind, lambda: Served(check, folder, cases, **changes), seconds=25)
    if served is not None:
        parts = served.runner.startup
        note = ", ".join(f"{part} {seconds:.2f}" for part, seconds in parts.items())
        check.row("start-up, s", kind, value=sum(parts.values()), note=note)
    return served


def _usual(check: Check, served: Served) -> None:
    sizes = check.sizes
    tokens = sizes.shared + sizes.own
    for name, cached in (("cold", 0), ("hot", sizes.shared)):
        case = f"{tokens - cached} new on {cached}"
        call = partial(first_token, check, served, cached, tokens)
        _first(check, f"first token, {name}", case, call, cached, name)
    _ratio(check, "runner")
    for batch in sizes.batches:
        _decode(check, served, "as usual", batch)
    for name, cached in (("cold", 0), ("hot", sizes.shared)):
        case = f"{tokens - cached} new on {cached}, with the scheduler"
        call = partial(served.answer, cached, tokens)
        _first(check, f"first token, {name}", case, call, cached, f"llm {name}")


def _first(
    check: Check, name: str, case: str, call: Callable[[], float], cached: int, fact: str
) -> None:
    """`call` gives the seconds of a prompt of which so many tokens are cached."""
    seconds = check.case(name, case, call)
    if seconds is None:
        return
    model, new = check.sizes.model, check.sizes.shared + check.sizes.own - cached
    pairs = new * cached + new * (new + 1) / 2
    flops = 2.0 * new * model.layer_weights
    flops += 4 * model.layers * model.heads * model.head_dim * pairs
    nbytes = ITEM * (model.weights + cached * model.token_numbers)
    note = f"median of {check.sizes.rounds} runs"
    check.timed(name, case, seconds * 1e6, nbytes=nbytes, flops=flops, note=note)
    check.fact(f"engine: {fact}", seconds * 1e6)
    check.fact(f"engine: {fact} floor", check.floor_us(nbytes, flops))


def _ratio(check: Check, by: str) -> None:
    cold, hot = (check.facts.get(f"engine: {name}") for name in ("cold", "hot"))
    if cold and hot:
        check.row("first token, cold / hot", by, value=cold / hot)


def _decode(check: Check, served: Served, kind: str, case: tuple[int, int, int]) -> None:
    count, context, shared = case
    text = f"{count} x {context}, {shared} shared"
    found = check.case(
        f"decode, {kind}", text, lambda: decoding(check, served, count, context, shared), seconds=5
    )
    if found is None:
        return
    model = check.sizes.model
    unique = shared + count * (context - shared)
    nbytes = ITEM * (model.weights + unique * model.token_numbers)
    us = found.period * 1e6
    note = f"{count / found.period:.0f} tokens/s"
    check.timed(f"decode step, {kind}", text, us, nbytes=nbytes, note=note)
    check.fact(f"engine: decode {text}: {kind}", us)
    check.row(f"host a step, us, {kind}", text, value=found.host * 1e6)
    if count == check.sizes.batch:
        check.row(f"idle between steps, {kind}", text, value=found.gap, note="share of the period")
        if found.outside is not None:
            check.row(
                f"period not in the graph, {kind}", text, value=found.outside,
                note="share; what is outside: copies, sampling, idling",
            )  # fmt: skip
        check.fact(f"engine: idle {text}: {kind}", found.gap)
