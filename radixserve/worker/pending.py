"""A step from its submission to its result. Made by the runner, one for each step."""

import time
from functools import partial

import torch
from torch import Tensor

from radixserve.messages import StepDone
from radixserve.worker.sampling import Sampled
from radixserve.worker.scoring import Scored


class Pending:
    """A step whose work is enqueued; the host need not wait for it to enqueue the next one.

    On a GPU the result travels to pinned memory behind the work, with an event behind it. On a
    CPU it is there as soon as the step is submitted. Steps get ready in the order they were
    submitted in.
    """

    def __init__(self, step: int, device: torch.device) -> None:
        """The step's work begins here."""
        self._step = step
        self._sampled: Sampled | None = None
        self._scored: Scored | None = None
        self._begin = time.perf_counter()
        self._seconds = 0.0
        self._events: tuple[torch.cuda.Event, ...] = ()
        if device.type == "cuda":
            event = partial(torch.cuda.Event, enable_timing=True)
            self._events = (event(), event())
            self._events[0].record()

    def submitted(self, sampled: Sampled | None = None, scored: Scored | None = None) -> None:
        """All of the step's work is enqueued. `sampled`: what comes of it, None without rows.

        `scored`: and of its scored rows, None without such.
        """
        if sampled is not None:
            self._sampled = _to_host(sampled)
        if scored is not None:
            columns = (scored.logprobs, scored.ranks, scored.ids, scored.values)
            self._scored = Scored(scored.counts, scored.wanted, *map(_copy, columns))
        for event in self._events[1:]:
            event.record()
        self._seconds = time.perf_counter() - self._begin

    def ready(self) -> bool:
        """Whether `result` would not wait."""
        return all(event.query() for event in self._events)  # type: ignore[no-untyped-call]

    def result(self) -> StepDone:
        """What the step gave, and how long it kept the device. Waits for it."""
        seconds = self._seconds
        if self._events:
            begin, end = self._events
            end.synchronize()
            seconds = begin.elapsed_time(end) / 1e3
        if self._sampled is None:
            return StepDone(step=self._step, tokens=b"", seconds=seconds)
        tokens, logprobs = self._sampled
        return StepDone(
            step=self._step,
            tokens=tokens.numpy().tobytes(),
            logprobs=() if logprobs is None else logprobs.messages(len(tokens)),
            seconds=seconds,
            scores=() if self._scored is None else self._scored.messages(),
        )


def _to_host(sampled: Sampled) -> Sampled:
    """Copies that are only enqueued; a CPU's tensors as they are."""
    tokens, logprobs = sampled
    if logprobs is not None:
        logprobs = logprobs._replace(
            chosen=_copy(logprobs.chosen), ids=_copy(logprobs.ids), values=_copy(logprobs.values)
        )
    return Sampled(_copy(tokens), logprobs)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", non_blocking=True)  # torch takes pinned memory for it
