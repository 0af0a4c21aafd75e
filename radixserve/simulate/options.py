"""The command line of the simulator, and the runs that it asks for.

Flags of scheduler and worker are those of the server, derived from the same fields. Where several
values are given, with commas, every combination is one run.
"""

import argparse
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from radixserve.cache import POLICIES
from radixserve.config import SchedulerConfig, WorkerConfig, fields_of, flag
from radixserve.messages import WorkerReady
from radixserve.scheduler.order import ORDERS
from radixserve.simulate.bound import Bound
from radixserve.simulate.clients import Load
from radixserve.simulate.worker import TYPICAL, Cost, measured
from radixserve.simulate.workloads import recorded_steps

UNLIMITED = 2**31 - 1  # ids, lengths and queues that nothing bounds
STEP_TOKENS = 4096  # and so many running requests in an open loop: what a GPU worker chooses
OPEN_LOOP_RUNNING = 256
CHOICES = {"schedule_policy": tuple(ORDERS), "radix_eviction_policy": tuple(POLICIES)}
NOT_SIMULATED = {"record_trace"}  # written by the scheduler's process, not by the scheduler
SINGLE = {"tenant_quotas"}  # has commas of its own
WORKER = (
    "page_size",
    "max_total_tokens",
    "max_running_requests",
    "chunked_prefill_size",
    "context_length",
)
MEANS = {  # what 0 stands for here, and other defaults that differ from the server's
    "max_total_tokens": "tokens in the cache and running; 0: as many as the workload has",
    "max_running_requests": "requests that run at once; 0: as many as --users, else 256",
    "chunked_prefill_size": "most tokens in one step; 0: 4096",
    "context_length": "longest prompt + answer; 0: no limit",
}
DEFAULTS: dict[str, Any] = {"max_queued_requests": UNLIMITED}  # clients here never try again
LOAD = ("users", "rate")


@dataclass(frozen=True, slots=True)
class Setting:
    """One run. `values` are the flags that make it, by field name."""

    scheduler: SchedulerConfig
    worker: WorkerConfig
    load: Load
    values: dict[str, Any]

    def ready(self, bound: Bound) -> WorkerReady:
        """What the simulated worker can hold, for a workload with this bound."""
        worker = self.worker
        size = worker.page_size
        rows = worker.max_running_requests or self.load.users or OPEN_LOOP_RUNNING
        pages = worker.max_total_tokens // size
        if not worker.max_total_tokens:  # per request an open page and one at a fork
            pages = bound.distinct // size + 2 * bound.requests
            pages += min(rows, bound.requests) * (bound.longest // size + 1)
        return WorkerReady(
            num_pages=max(pages, 1),
            page_size=size,
            max_rows=rows,
            step_tokens=max(worker.chunked_prefill_size or STEP_TOKENS, rows + size),
            context_length=worker.context_length or UNLIMITED,
            vocab_size=UNLIMITED,
            fingerprint="simulated",
        )


@dataclass(frozen=True, slots=True)
class Options:
    """A parsed command line."""

    args: argparse.Namespace
    settings: list[Setting]
    varied: list[str]  # fields that differ between the settings


def parse(argv: Sequence[str]) -> Options:
    """Ends the program with a message and exit code 2 on a wrong command line."""
    p = parser()
    args = p.parse_args(argv)
    _contradictions(p, args)
    names = [*LOAD, *_flags()]
    lists = {name: _list(getattr(args, name)) for name in names}
    settings = []
    for values in itertools.product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        try:
            settings.append(_setting(chosen, args))
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at ")
            p.error(f"argument {flag(where.strip('`').rpartition('.')[2])}: {what}")
        if 0 < chosen["max_total_tokens"] < chosen["page_size"]:
            p.error("argument --max-total-tokens: less than a page")
    varied = [name for name, values in lists.items() if len(values) > 1]
    if args.plot and ("max_total_tokens" not in varied or 0 in lists["max_total_tokens"]):
        p.error("argument --plot: give several --max-total-tokens, the curve's cache sizes")
    return Options(args, settings, varied)


def cost(text: str, trace: Path) -> Cost:
    """`measured`, or milliseconds a step, microseconds a prefill token and a decode row."""
    if text == "measured":
        return measured(recorded_steps(trace))
    step, prefill, decode = map(float, text.split(","))
    return Cost(step * 1e-3, prefill * 1e-6, decode * 1e-6)


def _setting(chosen: dict[str, Any], args: argparse.Namespace) -> Setting:
    parts: dict[type, dict[str, Any]] = {
        part: {name: chosen[name] for name in fields_of(part) if name in chosen}
        for part in (SchedulerConfig, WorkerConfig)
    }
    load = Load(
        users=chosen["users"],
        rate=chosen["rate"],
        recorded_times=args.recorded_times,
        speed=args.speed or 1.0,
        shuffle=args.shuffle,
        seed=args.seed or 0,
    )
    return Setting(
        msgspec.convert(parts[SchedulerConfig], SchedulerConfig),
        msgspec.convert(parts[WorkerConfig], WorkerConfig),
        load,
        chosen,
    )


def _contradictions(p: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    loops = [args.users is not None, args.rate is not None, args.recorded_times]
    if sum(loops) > 1:
        p.error("--users, --rate and --recorded-times exclude each other")
    if args.speed is not None and not args.recorded_times:
        p.error("argument --speed: only with --recorded-times")
    if args.seed is not None and args.rate is None:
        p.error("argument --seed: only with --rate, whose times it draws")
    if args.rate is not None or args.recorded_times:
        args.users = [0]
    else:
        args.users = args.users or [1]
    args.rate = args.rate or [0.0]


def _flags() -> dict[str, tuple[type, str, Any]]:
    """The fields of scheduler and worker that are flags here."""
    scheduler = {k: v for k, v in fields_of(SchedulerConfig).items() if k not in NOT_SIMULATED}
    worker = {k: v for k, v in fields_of(WorkerConfig).items() if k in WORKER}
    return scheduler | worker


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _several(kind: Callable[[str], Any], choices: Sequence[str] = ()) -> Any:
    """An argparse type: one value or several with commas between, each once."""

    def convert(text: str) -> list[Any]:
        values = [kind(part) for part in text.split(",")]
        for value in values:
            if choices and value not in choices:
                raise argparse.ArgumentTypeError(f"{value!r} is none of {', '.join(choices)}")
        return list(dict.fromkeys(values))

    convert.__name__ = kind.__name__  # argparse names it in its messages
    return convert


def _positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse type: a number above zero."""

    def convert(text: str) -> Any:
        value = kind(text)
        if not 0 < value < inf:
            raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
        return value

    convert.__name__ = kind.__name__
    return convert


def _cost(text: str) -> str:
    parts = [] if text == "measured" else [float(part) for part in text.split(",")]
    if text != "measured" and (len(parts) != 3 or min(parts) < 0 or not 0 < sum(parts) < inf):
        raise argparse.ArgumentTypeError("wants STEP_MS,PREFILL_US,DECODE_US or `measured`")
    return text


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="python -m radixserve.simulate",
        description="Plays a recorded workload through the real scheduler and cache with a "
        "simulated worker. Several values with commas between make one run each.",
        epilog="Prints a table, or with --json one line of JSON a run.",
    )
    add = p.add_argument
    add("trace", type=Path, help="folder of a recorded set, file of a trace, or own recording")
    add("--limit", type=_positive(int), default=0, help="only the first so many requests")
    add("--block", type=_positive(int), default=0, help="shrink a trace: tokens per recorded block")
    add("--samples", action="store_true", help="play a request for n answers as n requests")
    add("--outputs", choices=("recorded", "none"), default="recorded",
        help="answers as recorded (or as long), or one token each")  # fmt: skip
    add("--users", type=_several(_positive(int)),
        help="closed loop: sessions open at once (default: 1)")  # fmt: skip
    add("--rate", type=_several(_positive(float)),
        help="open loop: sessions a second, at random times")  # fmt: skip
    add("--seed", type=int, help="of the random times (default: 0)")
    add("--recorded-times", action="store_true", help="open loop: as the trace was recorded")
    add("--speed", type=_positive(float), help="so many times as fast as recorded (default: 1)")
    add("--shuffle", type=int, metavar="SEED",
        help="sessions in random order; requests tied to no other all wait from the start"
    )  # fmt: skip
    typical = f"{TYPICAL.step * 1e3:g},{TYPICAL.prefill * 1e6:g},{TYPICAL.decode * 1e6:g}"
    add("--cost", type=_cost, default=typical, metavar="STEP_MS,PREFILL_US,DECODE_US",
        help=f"time of a step, or `measured`: by the recording's steps (default: {typical})"
    )  # fmt: skip
    add(
        "--optimum",
        action="store_true",
        help="add what clairvoyant eviction would hit: whole pages, serially",
    )
    add("--json", action="store_true", help="print one line of JSON a run, and no table")
    add("--plot", type=Path, metavar="FILE.png", help="draw hit rate over cache size by policy")
    for name, (kind, text, default) in _flags().items():
        _add_field(p, name, kind, MEANS.get(name, text), DEFAULTS.get(name, default))
    return p


def _add_field(
    p: argparse.ArgumentParser, name: str, kind: type, text: str, default: object
) -> None:
    if kind is bool:
        p.add_argument(flag(name), action="store_true", help=text)
        return
    if name in CHOICES:
        text = f"{text}: {', '.join(CHOICES[name])}"
    shown = "" if default in ("", 0) else f" (default: {default})"
    shown = " (default: no limit)" if default == UNLIMITED else shown
    convert = kind if name in SINGLE else _several(kind, CHOICES.get(name, ()))
    p.add_argument(flag(name), type=convert, default=default, metavar="X", help=text + shown)
