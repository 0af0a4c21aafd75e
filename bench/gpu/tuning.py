"""A small search for block sizes of attention, and its best as a line for `tuned.json`."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import product

import torch

from bench.gpu.check import Absent, Check
from bench.gpu.correct import layer_shape
from bench.gpu.paged import Request, Rows
from bench.gpu.timing import Call
from radixserve_kernels.tiles import AttentionTiles, chip_of, padded

SHOWN = 4  # of the best forms
TOGETHER = 8  # forms that are compiled at a time
SECONDS = 8.0  # that those may take


def section(check: Check) -> None:
    shape = layer_shape(check, check.sizes.page_sizes[0])
    tiles = Rows(shape, [1], check.device).tiles()
    chosen = check.case("search", "decode", lambda: _decode(check, tiles), seconds=20) or tiles
    chosen = check.case("search", "prefill", lambda: _prefill(check, chosen), seconds=15) or chosen
    group = shape.heads // shape.kv_heads
    entry = {
        "kernel": "attention",
        "chip": chip_of(check.device),
        "bytes": shape.dtype.itemsize,
        "kv_bytes": shape.dtype.itemsize,
        "head_size": max(64, padded(shape.head_dim)),
        "group": group,
        "page_size": shape.page_size,
        "chunk": chosen.chunk,
        "block_n": chosen.narrow.block_n,
        "split_tokens": chosen.split_tokens,
    }
    for name in ("narrow", "wide", "tile"):
        form = asdict(getattr(chosen, name))
        del form["block_n"]
        entry[name] = {key: value for key, value in form.items() if value is not None}
    check.row("for tuned.json", note=json.dumps(entry))


def _decode(check: Check, tiles: AttentionTiles) -> AttentionTiles:
    """Chunk, step, stages and warps, by the time of a step without and one with shared tokens."""
    sweep = check.sizes.sweep
    shape = layer_shape(check, check.sizes.page_sizes[0])
    batches = []
    for count, length, shared in check.sizes.decode[:2]:
        requests: list[Request] = [(row, 1, length) for row in range(count)]
        rows = Rows(shape, [length] * count, check.device, shared=shared)
        batches.append((rows, requests, rows.query(requests)))
    forms = {"as tuned": tiles}
    for chunk, step, stages, warps in product(
        sweep.chunks, sweep.block_n, sweep.stages, sweep.warps
    ):
        form = replace(
            tiles,
            chunk=chunk,
            narrow=replace(tiles.narrow, block_n=step, num_stages=stages, num_warps=warps),
            wide=replace(tiles.wide, block_n=step, num_stages=stages),
            tile=replace(tiles.tile, block_n=step),
        )
        forms[f"chunk {chunk}, N {step}, {stages} stages, {warps} warps"] = form
    calls = {
        name: [rows.launch(requests, form, shape.engine_parts, q) for rows, requests, q in batches]
        for name, form in forms.items()
    }
    return forms[_best(check, "decode", calls)]


def _prefill(check: Check, tiles: AttentionTiles) -> AttentionTiles:
    """Height, stages and warps of the tile, with the step that decoding has."""
    sweep = check.sizes.sweep
    count, new, cached = check.sizes.extend[-1]
    requests: list[Request] = [(row, new, new + cached) for row in range(count)]
    shape = layer_shape(check, check.sizes.page_sizes[0])
    rows = Rows(shape, [new + cached] * count, check.device)
    q = rows.query(requests)
    forms = {"as tuned": tiles}
    for height, warps, stages in product(sweep.tile_m, sweep.warps, sweep.tile_stages):
        tile = replace(tiles.tile, block_m=height, num_warps=warps, num_stages=stages)
        forms[f"M {height}, {warps} warps, {stages} stages"] = replace(tiles, tile=tile)
    calls = {name: [rows.launch(requests, form, 0, q)] for name, form in forms.items()}
    return forms[_best(check, "prefill", calls)]


def _best(check: Check, case: str, calls: Mapping[str, list[Call]]) -> str:
    """The form with the least time over its calls; a row for each of the best.

    Forms are compiled side by side, a few at a time, until no time is left.
    """
    timings: dict[str, float] = {}
    names = list(calls)
    for begin in range(0, len(names), TOGETHER):
        if check.left < SECONDS:
            note = f"{begin} of {len(names)} forms were tried"
            check.row("search", case, verdict="cut", note=note)
            break
        some = names[begin : begin + TOGETHER]
        check.warm([call for name in some for call in calls[name]])
        for name in some:
            us = check.case(name, case, partial(_time, check, calls[name]), seconds=0)
            if us is not None:
                timings[name] = us
    ranked = sorted(timings, key=lambda name: timings[name])
    if not ranked:
        raise Absent("no form ran in the time that was left")
    for name in [*ranked[:SHOWN], *({"as tuned"} & set(ranked[SHOWN:]))]:
        check.timed(name, case, timings[name])
    return ranked[0]


def _time(check: Check, calls: list[Call]) -> float:
    """Microseconds of all calls. A form that the chip has no room for is no failure."""
    try:
        with torch.inference_mode():
            calls[0]()
    except Exception as error:
        raise Absent(f"{type(error).__name__}: {error}".replace("\n", " ")[:120]) from None
    timings = check.timer.medians({str(i): [call] for i, call in enumerate(calls)})
    return sum(timing.us for timing in timings.values())
