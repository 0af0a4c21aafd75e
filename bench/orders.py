"""What the order of the waiting requests does, by simulation: hits, and who waits how long.

    python -m bench.orders [--data FOLDER]

Three tables, each run one more line in bench/results/orders.jsonl:

    batch    a shuffled set, all of it waiting, 32 running, a cache of 16,384 tokens
    users    the same set with 64 users, each with one request at a time
    stream   an endless stream of requests with a cached prefix, and now and then one without:
             what the cold ones wait, by order and bound
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench.record import RESULTS, append, entry
from bench.workloads import DATA
from radixserve.scheduler.order import ORDERS
from radixserve.simulate.command import Study, open_study
from radixserve.simulate.options import parse
from radixserve.simulate.play import Simulation
from radixserve.simulate.tokens import Encoder
from radixserve.simulate.worker import TYPICAL
from radixserve.simulate.workloads import Blocks

CACHE = ["--page-size", "16", "--max-total-tokens", "16384", "--max-running-requests", "32"]
BATCH_SETS = ("mmlu_val", "bbh")
BOUNDS = (1.0, 3.0, 10.0)
SECONDS = 120.0  # of the stream
TRUNK, QUESTION, COLD, ANSWER = 2000, 50, 4000, 32  # tokens
NAMES = [name for name in ORDERS if name != "default"]


def stream(rate: float, cold_every: float) -> list[Blocks]:
    """`rate` warm requests a second at random times, and a cold one each `cold_every` seconds."""
    chance, now, arrivals = random.Random(0), 0.0, list[tuple[float, bool]]()
    while (now := now + chance.expovariate(rate)) < SECONDS:
        arrivals.append((now, True))
    arrivals += [(k * cold_every, False) for k in range(1, int(SECONDS / cold_every))]
    requests = []
    for number, (at, warm) in enumerate(sorted(arrivals)):
        requests.append(
            Blocks(
                id=number,
                session="warm" if warm else "cold",
                max_out=ANSWER,
                at=at,
                runs=(0, 1) if warm else (),
                block=TRUNK,
                covered=TRUNK if warm else 0,
                length=TRUNK + QUESTION if warm else COLD,
            )
        )
    return requests


def waits(requests: Sequence[Blocks], order: str, bound: float) -> dict[str, Any]:
    """Seconds from arrival to admission, of warm and of cold requests."""
    sessions = {request.id: request.session for request in requests}
    alone = [replace(request, session=str(request.id)) for request in requests]
    options = ["trace", "--recorded-times", "--schedule-policy", order, *CACHE[:2]]
    options += ["--max-total-tokens", "65536", "--max-running-requests", "8"]
    (setting,) = parse([*options, "--max-overtaking-seconds", str(bound)]).settings
    study = Study(alone, Encoder(outputs=True, samples=False), TYPICAL)
    simulation = Simulation(
        alone,
        Encoder(outputs=True, samples=False),
        setting.load,
        setting.scheduler,
        setting.ready(study.bound()),
        TYPICAL,
    )
    outcome = simulation.run()
    found: dict[str, list[float]] = {"warm": [], "cold": []}
    for name, seconds in zip(outcome.admitted, outcome.waiting, strict=True):
        found[sessions[int(name.partition(".")[0])]].append(seconds)
    result: dict[str, Any] = {"table": "stream", "order": order, "bound_s": bound}
    for kind, values in found.items():
        cuts = quantiles(values, n=100, method="inclusive")
        result |= {f"{kind}_p50_s": cuts[49], f"{kind}_p99_s": cuts[98]}
        result |= {f"{kind}_max_s": max(values), f"{kind}_requests": len(values)}
    return result


def batches(data: Path, load: Sequence[str], title: str) -> Iterator[dict[str, Any]]:
    for name in BATCH_SETS:
        options = parse([str(data / name), *load, *CACHE, "--schedule-policy", ",".join(NAMES)])
        study = open_study(options)
        for setting in options.settings:
            found = study.play(setting, best=False)
            yield {"table": title, "set": name, "order": setting.values["schedule_policy"]} | found


def lone(data: Path, name: str) -> Study:
    """A shuffled set in which every request is a session of its own, so that users take turns."""
    study = open_study(parse([str(data / name)]))
    requests = list(study.requests)
    random.Random(0).shuffle(requests)
    alone = [replace(r, session=str(k), id=k) for k, r in enumerate(requests)]
    return Study(alone, Encoder(outputs=True, samples=False), TYPICAL)


def users(data: Path, count: int) -> Iterator[dict[str, Any]]:
    for name in BATCH_SETS:
        study = lone(data, name)
        more = ["--users", str(count), *CACHE, "--schedule-policy", ",".join(NAMES)]
        for setting in parse([str(data / name), *more]).settings:
            found = study.play(setting, best=False)
            order = setting.values["schedule_policy"]
            yield {"table": "users", "set": name, "order": order} | found


def show(columns: dict[str, str], rows: Iterator[dict[str, Any]], results: Path) -> None:
    """Print a table as its rows come. `columns`: heading -> field."""
    print(f"\n| {' | '.join(columns)} |\n|---|---{'|---:' * (len(columns) - 2)}|")
    for row in rows:
        cells = [row[field] for field in columns.values()]
        texts = [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells]
        print(f"| {' | '.join(texts)} |", flush=True)
        append("orders", entry("python -m bench.orders", row), results)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.orders", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data", type=Path, default=DATA, help="default: ../shared/data")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of orders.jsonl")
    args = parser.parse_args(argv)
    columns = {"set": "set", "order": "order", "hit": "hit_rate", "bound": "bound"}
    columns |= {f"TTFT {q}, s": f"ttft_{q}_s" for q in ("p50", "p99", "max")}
    if all((args.data / name).exists() for name in BATCH_SETS):
        show(
            columns, batches(args.data, ["--users", "32", "--shuffle", "0"], "batch"), args.results
        )
        show(columns, users(args.data, 64), args.results)
    else:
        print(
            f"no {' and '.join(BATCH_SETS)} in {args.data}: the tables batch and users are left out"
        )
    columns = {"order": "order", "bound, s": "bound_s"}
    for kind in ("warm", "cold"):
        columns |= {f"{kind} waits {q}, s": f"{kind}_{q}_s" for q in ("p50", "p99", "max")}
    requests = stream(rate=34.0, cold_every=2.0)
    rows = (waits(requests, order, bound) for order in NAMES for bound in BOUNDS)
    show(columns, rows, args.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
