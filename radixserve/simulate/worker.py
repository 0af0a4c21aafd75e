"""A worker without a model: it takes time as a cost model says, and answers as it is told."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from radixserve.messages import INT32_BYTES, RunStep, StepDone
from radixserve.simulate.tokens import Call
from radixserve.simulate.workloads import Missing, Steps


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a step = step + prefill * tokens of longer rows + decode * rows of one token."""

    step: float
    prefill: float
    decode: float

    def seconds(self, prefill_tokens: int, decode_rows: int) -> float:
        return self.step + self.prefill * prefill_tokens + self.decode * decode_rows


# About an 8B model on one large GPU.
TYPICAL = Cost(step=6e-3, prefill=30e-6, decode=60e-6)


def measured(steps: Steps) -> Cost:
    """Least squares over recorded steps, nothing below zero; `Missing` if they say too little."""
    rows = np.array(steps.rows, dtype=float).reshape(-1, 3)
    known = np.column_stack([np.ones(len(rows)), rows[:, :2]])
    if np.linalg.matrix_rank(known) < 3:
        raise Missing("the recorded steps are few or all alike: give --cost in figures")
    kept = [0, 1, 2]
    while True:  # what comes out negative is left out, at most twice
        found = np.linalg.lstsq(known[:, kept], rows[:, 2], rcond=None)[0]
        if (found >= 0).all() or len(kept) == 1:
            break
        kept.pop(int(found.argmin()))
    parts = dict(zip(kept, map(float, found), strict=True))
    return Cost(parts.get(0, 0.0), parts.get(1, 0.0), parts.get(2, 0.0))


class Worker:
    """Runs steps one after another. `slots` says which call a slot stands for."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._slots: dict[int, Call] = {}

    def run(self, step: RunStep, calls: Mapping[int, Call]) -> StepDone:
        """The result of a step, which admits `calls` by slot."""
        for slot in step.frees:
            del self._slots[slot]
        for admit in step.admits:
            assert admit.slot not in self._slots, "a slot is freed before it is used again"
            self._slots[admit.slot] = calls[admit.slot]
        prefill = decode = 0
        sampled = []
        for row in step.rows:
            call = self._slots[row.slot]
            count = len(row.tokens) // INT32_BYTES or 1
            at = row.start + count - call.prompt_tokens  # of the answer's token that comes next
            if count == 1:
                decode += 1
            else:
                prefill += count
            if row.sample:
                sampled.append(call.output[at * INT32_BYTES : (at + 1) * INT32_BYTES])
        return StepDone(step.step, b"".join(sampled), seconds=self._cost.seconds(prefill, decode))
