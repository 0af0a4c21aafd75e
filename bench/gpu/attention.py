"""Attention of one layer: decoding over shared and own K/V, extensions, prefill; beside others."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from bench.gpu import rivals
from bench.gpu.check import Check
from bench.gpu.correct import layer_shape
from bench.gpu.paged import Request, Rows, Shape
from bench.gpu.timing import Call

COLD_BYTES = 192 << 20  # of K/V that calls in turn read: several times the second-level cache
MOST_SETS = 16
SPLIT_TOKENS = 2100  # new tokens of a row up to which splitting is tried


def decode(check: Check) -> None:
    """Section: one new token per row."""
    sizes = check.sizes
    for index, case in enumerate(sizes.decode):
        for page_size in sizes.page_sizes:
            shapes = [layer_shape(check, page_size)]
            if index == 0 and page_size == sizes.page_sizes[0]:
                shapes.append(layer_shape(check, page_size, fp8=True))
            for shape in shapes:
                name = f"{case[0]} x {case[1]}, {case[2]} shared, page {page_size}"
                name += ", fp8" if shape.fp8 else ""
                call = partial(_decode, check, name, shape, *case)
                check.case("ours", name, call, seconds=6)
                check.free()


def _decode(check: Check, name: str, shape: Shape, count: int, length: int, shared: int) -> None:
    requests = [(row, 1, length) for row in range(count)]
    unique = (shared + count * (length - shared)) * shape.token_bytes
    sets = _sets(check, shape, requests, shared, unique)
    q = sets[0].query(requests)
    ways = {"ours": [rows.launch(requests, q=q, max_parts=shape.engine_parts) for rows in sets]}
    if shape.page_size == check.sizes.page_sizes[0]:
        ways |= rivals.ready(check, sets, requests, q, name)
    model = check.sizes.model
    flops = 4 * count * length * model.heads * model.head_dim
    _timed(check, name, ways, unique, flops)


def extend(check: Check) -> None:
    """Section: several new tokens per row, behind cached ones or none."""
    for count, new, cached in check.sizes.extend:
        name = f"{count} x {new} new on {cached}"
        shape = layer_shape(check, check.sizes.page_sizes[0])
        call = partial(_extend, check, name, shape, count, new, cached)
        check.case("ours", name, call, seconds=8)
        check.free()


def _extend(check: Check, name: str, shape: Shape, count: int, new: int, cached: int) -> None:
    length = new + cached
    requests = [(row, new, length) for row in range(count)]
    nbytes = count * length * shape.token_bytes
    nbytes += 2 * count * new * shape.heads * shape.head_dim * shape.dtype.itemsize  # q and result
    sets = _sets(check, shape, requests, 0, count * length * shape.token_bytes)
    q, tiles = sets[0].query(requests), sets[0].tiles()
    ways = {
        "ours": [rows.launch(requests, q=q, max_parts=shape.engine_parts) for rows in sets],
        "ours, tiled": [rows.launch(requests, q=q, max_parts=0) for rows in sets],
    }
    if new <= SPLIT_TOKENS:
        split = replace(tiles, split_tokens=max(new, tiles.split_tokens))
        ways["ours, split"] = [rows.launch(requests, split, q=q) for rows in sets]
    ways |= rivals.ready(check, sets, requests, q, name)
    pairs = new * cached + new * (new + 1) / 2
    flops = 4 * shape.heads * shape.head_dim * count * pairs
    _timed(check, name, ways, nbytes, flops)


def _sets(
    check: Check, shape: Shape, requests: Sequence[Request], shared: int, nbytes: int
) -> list[Rows]:
    """The rows, as often as it takes that no call finds in the cache what the last one read."""
    count = 1 if check.dry else max(1, min(MOST_SETS, COLD_BYTES // max(1, nbytes)))
    lengths = [length for _, _, length in requests]
    return [Rows(shape, lengths, check.device, shared=shared) for _ in range(count)]


def _timed(
    check: Check, name: str, ways: dict[str, list[Call]], nbytes: float, flops: float
) -> None:
    with torch.inference_mode():
        check.warm([calls[0] for calls in ways.values()])
        timings = check.timer.medians(ways)
    for way, timing in timings.items():
        ours = way.startswith("ours")
        note = "" if timing.captured else "not as a graph"
        check.timed(
            way, name, timing.us, nbytes=nbytes, flops=flops,
            section="" if ours else rivals.SECTION, note=note,
        )  # fmt: skip
        check.fact(f"{check.section}: {name}: {way}", timing.us)
    check.fact(f"{check.section}: {name}: floor", check.floor_us(nbytes, flops))
