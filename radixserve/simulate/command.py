"""Runs what a command line of the simulator asks for, and prints it."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from radixserve.simulate import optimum, plot
from radixserve.simulate.bound import Bound, bound
from radixserve.simulate.clients import in_turn
from radixserve.simulate.options import Options, Setting, cost, parse
from radixserve.simulate.play import Simulation
from radixserve.simulate.report import summary, table
from radixserve.simulate.tokens import Call, Encoder
from radixserve.simulate.worker import Cost
from radixserve.simulate.workloads import Missing, Recorded, read


class Study:
    """One workload, to be played with several settings."""

    def __init__(self, requests: Sequence[Recorded], encoder: Encoder, price: Cost) -> None:
        self.requests = requests
        self._encoder = encoder
        self._cost = price
        self._bounds: dict[frozenset[str], Bound] = {}

    def calls(self) -> Iterator[Call]:
        """All calls as one user would make them, one session after another."""
        return self._encoder.stream(in_turn(self.requests))

    def bound(self, without: frozenset[str] = frozenset()) -> Bound:
        """Of the calls in serial order, but for some that were refused."""
        if without not in self._bounds:
            self._bounds[without] = bound(c for c in self.calls() if c.name not in without)
        return self._bounds[without]

    def play(
        self, setting: Setting, *, best: bool, progress: Callable[[], object] = lambda: None
    ) -> dict[str, Any]:
        """Settings and results of one run; `best`: with the optimum."""
        ready = setting.ready(self.bound())
        simulation = Simulation(
            self.requests,
            self._encoder,
            setting.load,
            setting.scheduler,
            ready,
            self._cost,
            progress,
        )
        outcome = simulation.run()
        most = self.bound(frozenset(outcome.rejected))
        result = summary(simulation, ready, most, setting.values)
        if best:
            calls = self._in_order(outcome.admitted)
            result["optimum"] = optimum.optimum(calls, ready.page_size, ready.num_pages).rate
        return result

    def _in_order(self, names: Sequence[str]) -> Iterator[Call]:
        requests = {request.id: request for request in self.requests}
        for name in names:
            number, _, sample = name.partition(".")
            yield self._encoder.call(requests[int(number)], int(sample))


def open_study(options: Options) -> Study:
    """The workload that the command line names. Raises `Missing`."""
    args = options.args
    rows = read(args.trace, args.block)
    try:
        requests = list(islice(rows, args.limit) if args.limit else rows)
    except KeyError as error:
        raise Missing(f"{args.trace}: a line lacks {error}") from None
    if not requests:
        raise Missing(f"{args.trace} has no requests")
    encoder = Encoder(outputs=args.outputs == "recorded", samples=args.samples)
    return Study(requests, encoder, cost(args.cost, args.trace))


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[], object]]:
    """Counts requests on stderr, if that is a terminal and tqdm is there."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda: None
        return
    with tqdm(total=total, unit="req", file=sys.stderr, leave=False) as bar:
        yield bar.update


def main(argv: Sequence[str]) -> int:
    """0, or 2 if the workload or a package is missing."""
    options = parse(argv)
    args = options.args
    try:
        if args.plot:
            plot.ready()
        study = open_study(options)
    except (Missing, plot.NoPlot, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    results: list[dict[str, Any]] = []
    with progress_bar(study.bound().requests * len(options.settings)) as progress:
        for setting in options.settings:
            result = study.play(setting, best=args.optimum, progress=progress)
            results.append({"trace": str(args.trace)} | result)
            if args.json:
                sys.stdout.write(json.dumps(results[-1]) + "\n")
                sys.stdout.flush()
    if not args.json:
        sys.stdout.write(table(results, options.varied) + "\n")
    if args.plot:
        plot.draw(results, options.varied, str(args.trace), args.plot)
    return 0
