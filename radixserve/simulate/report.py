"""What a run comes to: one flat dictionary for machines, a table for people."""

from collections.abc import Sequence
from typing import Any

from radixserve.config import flag
from radixserve.messages import WorkerReady
from radixserve.simulate.bound import Bound
from radixserve.simulate.play import Simulation

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
COLUMNS = {  # heading -> (keys of the result, factor, digits)
    "hit %": (("hit_rate",), 100, 2),
    "bound %": (("bound",), 100, 2),
    "optimum %": (("optimum",), 100, 2),
    "TTFT ms p50/p90/p99/max": (tuple(f"ttft_{q}_s" for q in QUANTILES), 1e3, 0),
    "waiting ms p50/p99/max": (tuple(f"waiting_{q}_s" for q in ("p50", "p99", "max")), 1e3, 0),
    "evicted pages": (("evicted_pages",), 1, 0),
    "preempted": (("preemptions",), 1, 0),
    "rejected": (("rejected",), 1, 0),
    "steps": (("steps",), 1, 0),
    "tokens/s": (("tokens_per_s",), 1, 0),
    "scheduler us/step": (("scheduler_us_per_step",), 1, 1),
}
HIDDEN_IF_ZERO = {"rejected"}


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of sorted `values` that at least this share of them do not exceed; 0 if none."""
    if not values:
        return 0.0
    rank = -int(-share * len(values) // 1)  # rounded up
    return values[max(rank, 1) - 1]


def summary(
    simulation: Simulation, ready: WorkerReady, bound: Bound, values: dict[str, Any]
) -> dict[str, Any]:
    """Settings and results by name. Rates are shares of 1, times are virtual seconds.

    Only `scheduler_us_per_step` is measured on a real clock.
    """
    outcome, stats = simulation.outcome, simulation.scheduler.stats()
    settings = values | {
        "pages": ready.num_pages,
        "max_running_requests": ready.max_rows,
        "chunked_prefill_size": ready.step_tokens,
    }
    tokens = outcome.prompt_tokens + outcome.output_tokens
    ttft, waiting = sorted(outcome.ttft), sorted(outcome.waiting)
    return settings | {
        "requests": outcome.finished,
        "rejected": len(outcome.rejected),
        "prompt_tokens": outcome.prompt_tokens,
        "cached_tokens": outcome.cached_tokens,
        "output_tokens": outcome.output_tokens,
        "hit_rate": _ratio(outcome.cached_tokens, outcome.prompt_tokens),
        "bound": bound.rate,
        "bound_tokens": bound.cached_tokens,
        **{f"ttft_{name}_s": quantile(ttft, share) for name, share in QUANTILES.items()},
        **{f"waiting_{name}_s": quantile(waiting, share) for name, share in QUANTILES.items()},
        "evicted_pages": stats.evicted_pages,
        "preemptions": stats.preemptions,
        "steps": stats.steps,
        "computed_tokens": stats.computed_tokens,
        "seconds": outcome.seconds,
        "tokens_per_s": _ratio(tokens, outcome.seconds),
        "output_tokens_per_s": _ratio(outcome.output_tokens, outcome.seconds),
        "scheduler_us_per_step": _ratio(outcome.scheduler_seconds * 1e6, stats.steps),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def table(results: Sequence[dict[str, Any]], varied: Sequence[str]) -> str:
    """A row each; what differs between the runs stands first."""
    headings = [flag(name)[2:] for name in varied]
    shown = {}
    for heading, column in COLUMNS.items():
        values = [result.get(column[0][0]) for result in results]
        if None not in values and (any(values) or heading not in HIDDEN_IF_ZERO):
            shown[heading] = column
    rows = [[*headings, *shown]]
    for result in results:
        cells = [str(result[name]) for name in varied]
        for keys, factor, digits in shown.values():
            cells.append(" / ".join(f"{result[key] * factor:,.{digits}f}" for key in keys))
        rows.append(cells)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
