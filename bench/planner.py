"""What planning an attention step costs the host: steady decoding, and one request for another.

    python -m bench.planner [--steps N]

Prints a row per case, last a line of JSON. Rows decode with lengths spread over a chunk, so that in
nearly every step one of them begins a chunk; block sizes are those of an H200.
"""

import argparse
import json
import time
from statistics import median

import numpy as np

from radixserve_kernels.attention_plan import Planner
from radixserve_kernels.tiles import attention_tiles

PAGE_SIZE, GROUP, HEAD_SIZE = 16, 4, 128
CASES = [  # rows, context, tokens shared by all
    (64, 8192, 4096),
    (256, 1024, 512),
    (256, 8192, 0),
    (256, 8192, 4096),
    (256, 8192, 8192),
    (256, 32768, 16384),
]


class Case:
    """Slots that decode, and their planner."""

    def __init__(self, rows: int, context: int, shared: int, steps: int) -> None:
        tiles = attention_tiles("sm_90", 2, HEAD_SIZE, GROUP, PAGE_SIZE)
        pages = (context + tiles.chunk + 2 * steps) // PAGE_SIZE + 1
        self._table = np.arange(rows * pages, dtype=np.int32).reshape(rows, pages)
        self._own = shared // PAGE_SIZE
        self._table[:, : self._own] = self._table[0, : self._own]
        self._context = context
        self._planner = Planner(
            self._table, page_size=PAGE_SIZE, group=GROUP, tiles=tiles, max_parts=10**9
        )
        self._slots = np.arange(rows, dtype=np.int32)
        self._new = np.ones(rows, dtype=np.int32)
        spread = np.arange(rows) * 97 % tiles.chunk
        self._start = (context + spread).astype(np.int32)
        self.step()

    def step(self) -> float:
        """Microseconds of one more step."""
        self._start = self._start + 1
        begin = time.perf_counter()
        self._planner.plan(self._slots, self._start, self._new).arrays()
        return (time.perf_counter() - begin) * 1e6

    def replace(self, slot: int) -> float:
        """The same for a step in which a slot has another request, with the shared prefix."""
        self._table[slot, self._own :] += self._table.size
        self._start[slot] = self._context
        begin = time.perf_counter()
        self._planner.forget(slot)
        return (time.perf_counter() - begin) * 1e6 + self.step()


def measure(steps: int) -> dict[str, dict[str, float]]:
    found = {}
    for rows, context, shared in CASES:
        case = Case(rows, context, shared, steps)
        steady = [case.step() for _ in range(steps)]
        changed = [case.replace(step % rows) for step in range(steps)]
        name = f"{rows} rows of {context}, {shared} shared"
        found[name] = {
            "steady_us": round(median(steady), 1),
            "steady_p99_us": round(float(np.quantile(steady, 0.99)), 1),
            "one_for_another_us": round(median(changed), 1),
            "one_for_another_p99_us": round(float(np.quantile(changed, 0.99)), 1),
        }
        print(f"{name:34} {found[name]}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="steps of each kind and case")
    print(json.dumps(measure(parser.parse_args().steps)))


if __name__ == "__main__":
    main()
