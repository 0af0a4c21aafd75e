"""How long device work takes: CUDA events around graph replays, or the host's clock in a dry run.

Calls are captured in CUDA graphs, as the engine runs them: what the host needs for a launch is not
in the times. Before each replay 256 MiB are written, so that nothing is found in the second-level
cache. Ways to do the same work take turns, and each has the median of its replays.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, Protocol

import torch

FLUSH_BYTES = 256 << 20
FLUSH_DEVICE = "cuda"
MILLISECONDS = 40.0  # about so long is measured for all ways of one case
LEAST, MOST = 5, 50  # rounds

Call = Callable[[], Any]


class Timing(NamedTuple):
    us: float  # microseconds of one call
    captured: bool = True  # whether it ran as a graph


class Timer(Protocol):
    """The clock of a device."""

    def medians(self, ways: Mapping[str, Sequence[Call]]) -> dict[str, Timing]:
        """Time of one call for each way to do the same.

        A way's calls run one behind another; more than one, on memory of their own, where the data
        of one would stay in the cache.
        """
        ...

    def span(self, call: Call, times: int) -> float:
        """Microseconds of one of `times` calls back to back, the host's launches included."""
        ...

    def replayed(self, call: Call) -> Any:
        """What `call` gives when a graph of it is replayed."""
        ...


class HostTimer:
    """Runs everything once, for a dry run on a CPU."""

    def medians(self, ways: Mapping[str, Sequence[Call]]) -> dict[str, Timing]:
        return {name: Timing(_once(calls)) for name, calls in ways.items()}

    def span(self, call: Call, times: int) -> float:
        return _once([call])

    def replayed(self, call: Call) -> Any:
        return call()


def _once(calls: Sequence[Call]) -> float:
    begin = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - begin) * 1e6 / len(calls)


class CudaTimer:
    """Events and graphs on the current device."""

    def __init__(self) -> None:
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=FLUSH_DEVICE)

    def medians(self, ways: Mapping[str, Sequence[Call]]) -> dict[str, Timing]:
        runs = {name: _captured(calls) for name, calls in ways.items()}
        once = sum(times[-1] for times in self._rounds(runs, 2).values())
        rounds = min(MOST, max(LEAST, int(MILLISECONDS / max(once, 1e-3))))
        times = self._rounds(runs, rounds)
        return {
            name: Timing(median(times[name]) * 1e3 / len(ways[name]), captured)
            for name, (_, captured, _) in runs.items()
        }

    def _rounds(
        self, runs: Mapping[str, tuple[Call, bool, Any]], rounds: int
    ) -> dict[str, list[float]]:
        """Milliseconds of each way in each round."""
        events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, (run, _, _) in runs.items():
                begin, end = _event(), _event()
                self._flush.zero_()
                begin.record()
                run()
                end.record()
                events[name].append((begin, end))
        torch.cuda.synchronize()
        return {
            name: [begin.elapsed_time(end) for begin, end in pairs]
            for name, pairs in events.items()
        }

    def span(self, call: Call, times: int) -> float:
        call()
        begin, end = _event(), _event()
        begin.record()
        for _ in range(times):
            call()
        end.record()
        torch.cuda.synchronize()
        elapsed: float = begin.elapsed_time(end)
        return elapsed * 1e3 / times

    def replayed(self, call: Call) -> Any:
        replay, captured, output = _captured([call])
        if not captured:
            raise RuntimeError("this cannot be captured as a CUDA graph")
        replay()
        torch.cuda.synchronize()
        return output


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _captured(calls: Sequence[Call]) -> tuple[Call, bool, Any]:
    """The calls as one graph, whether it is one, and what the last call gives when it is replayed.

    Without a graph if they cannot be captured.
    """
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()  # compiles kernels, and lets libraries take their workspaces
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    output: Any = None
    try:
        with torch.cuda.graph(graph):
            for call in calls:
                output = call()
    except RuntimeError:
        torch.cuda.synchronize()
        return lambda: [call() for call in calls], False, None
    return graph.replay, True, output
