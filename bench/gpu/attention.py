"""Attention of one layer: decoding over shared and own K/V, extensions, prefill; beside others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from bench.gpu import rivals
from bench.gpu.check import Absent, Check
from bench.gpu.correct import layer_shape
from bench.gpu.paged import Request, Rows, Shape
from bench.gpu.sizes import Case
from bench.gpu.timing import Call

COLD_BYTES = 192 << 20  # of K/V that calls in turn read: several times the second-level cache
MOST_SETS = 16
SPLIT_TOKENS = 2100  # new tokens of a row up to which splitting is tried


@dataclass(frozen=True, kw_only=True)
class Task:
    """One batch, and what it takes at least. The floor counts shared K/V once."""

    name: str
    shape: Shape
    requests: Sequence[Request]
    shared: int
    nbytes: float
    flops: float

    def sets(self, check: Check) -> list[Rows]:
        """The rows, as often as it takes that no call finds in the cache what the last one read."""
        count = max(1, min(MOST_SETS, COLD_BYTES // max(1, int(self.nbytes))))
        lengths = [length for _, _, length in self.requests]
        sets = 1 if check.dry else count
        return [Rows(self.shape, lengths, check.device, shared=self.shared) for _ in range(sets)]


def decode_task(shape: Shape, case: Case) -> Task:
    count, length, shared = case
    name = f"{count} x {length}, {shared} shared, page {shape.page_size}"
    unique = (shared + count * (length - shared)) * shape.token_bytes
    return Task(
        name=name + (", fp8" if shape.fp8 else ""),
        shape=shape,
        requests=[(row, 1, length) for row in range(count)],
        shared=shared,
        nbytes=unique,
        flops=4 * count * length * shape.heads * shape.head_dim,
    )


def extend_task(shape: Shape, case: Case) -> Task:
    count, new, cached = case
    length = new + cached
    pairs = new * cached + new * (new + 1) / 2
    q_bytes = count * new * shape.heads * shape.head_dim * shape.dtype.itemsize
    return Task(
        name=f"{count} x {new} new on {cached}",
        shape=shape,
        requests=[(row, new, length) for row in range(count)],
        shared=0,
        nbytes=count * length * shape.token_bytes + 2 * q_bytes,  # the result is as large
        flops=4 * shape.heads * shape.head_dim * count * pairs,
    )


def decode(check: Check) -> None:
    """Section: one new token per row."""
    for task in _decodes(check):
        check.case("ours", task.name, partial(_decode, check, task), seconds=5)
        check.free()


def _decodes(check: Check) -> Iterator[Task]:
    sizes = check.sizes
    for index, case in enumerate(sizes.decode):
        for page_size in sizes.page_sizes:
            yield decode_task(layer_shape(check, page_size), case)
            if index == 0 and page_size == sizes.page_sizes[0]:
                yield decode_task(layer_shape(check, page_size, fp8=True), case)


def _decode(check: Check, task: Task) -> None:
    sets = task.sets(check)
    _timed(check, task, {"ours": _ours(task, sets, sets[0].query(task.requests))})


def _ours(task: Task, sets: Sequence[Rows], q: torch.Tensor) -> list[Call]:
    """As the engine does it."""
    parts = task.shape.engine_parts
    return [rows.launch(task.requests, q=q, max_parts=parts) for rows in sets]


def extend(check: Check) -> None:
    """Section: several new tokens per row, behind cached ones or none."""
    shape = layer_shape(check, check.sizes.page_sizes[0])
    for case in check.sizes.extend:
        task = extend_task(shape, case)
        check.case("ours", task.name, partial(_extend, check, task), seconds=6)
        check.free()


def _extend(check: Check, task: Task) -> None:
    """Also with all rows tiled, and all split."""
    sets = task.sets(check)
    q, tiles = sets[0].query(task.requests), sets[0].tiles()
    ways = {
        "ours": _ours(task, sets, q),
        "ours, tiled": [rows.launch(task.requests, q=q, max_parts=0) for rows in sets],
    }
    _, new, _ = task.requests[0]
    if new <= SPLIT_TOKENS:
        split = replace(tiles, split_tokens=max(new, tiles.split_tokens))
        ways["ours, split"] = [rows.launch(task.requests, split, q=q) for rows in sets]
    _timed(check, task, ways)


def beside(check: Check) -> None:
    """Section: the same batches by others, in turn with ours."""
    shape = layer_shape(check, check.sizes.page_sizes[0])
    tasks = [decode_task(shape, case) for case in check.sizes.decode]
    tasks += [extend_task(shape, case) for case in check.sizes.extend]
    for task in tasks:
        check.case("ours", task.name, partial(_beside, check, task), seconds=5)
        check.free()


def _beside(check: Check, task: Task) -> None:
    sets = task.sets(check)
    q = sets[0].query(task.requests)
    others = rivals.ready(check, sets, task.requests, q, task.name)
    if not others:
        raise Absent("nobody to compare with")
    _timed(check, task, {"ours": _ours(task, sets, q)} | others)


def _timed(check: Check, task: Task, ways: Mapping[str, list[Call]]) -> None:
    check.warm([calls[0] for calls in ways.values()])
    with torch.inference_mode():
        timings = check.timer.medians(ways)
    for way, timing in timings.items():
        note = "" if timing.captured else "not as a graph"
        check.timed(way, task.name, timing.us, nbytes=task.nbytes, flops=task.flops, note=note)
        check.fact(f"{check.section}: {task.name}: {way}", timing.us)
    floor = check.floor_us(task.nbytes, task.flops)
    check.fact(f"{check.section}: {task.name}: floor", floor)
