"""Whether a token's bits depend on anything but its row: comparisons bit for bit.

With forms of 16 rows beside larger ones (what `tuned.json` says) a difference is a finding: it
decides whether the kinds of matrix instructions of the chip agree, so whether deterministic mode
may use both. With uniform forms a difference is a failure.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from bench.gpu.check import Check
from bench.gpu.correct import layer_shape
from bench.gpu.paged import Request, Rows, block_m
from radixserve_kernels.matmul import matmul
from radixserve_kernels.rms_norm import rms_norm
from radixserve_kernels.silu_mul import silu_mul
from radixserve_kernels.tiles import AttentionTiles

FORMS = (16, 64, 128)  # lanes: below 64 sm_90 has other matrix instructions


def section(check: Check) -> None:
    rows = check.case("bits of attention", "rows", lambda: _rows(check))
    if rows is not None:
        for name, case, call in _attention_cases(check, rows):
            check.case(name, case, call)
    for name in check.sizes.model.products:
        check.case("bits of matmul", name, partial(_matmul, check, name))
    check.case("bits of rms_norm and silu_mul", "", lambda: _rowwise(check))
    _conclusion(check)


def same(check: Check, name: str, case: str, out: Tensor, expected: Tensor, *, must: bool) -> None:
    """A row: OK if all bits agree, else the largest difference."""
    if torch.equal(out, expected):
        check.row(name, case, verdict="OK", note="same bits")
        return
    difference = (out.double() - expected.double()).abs()
    largest = float(difference.nan_to_num(nan=torch.inf).max())
    share = float((difference != 0).double().mean())
    note = f"DIFFERS by up to {largest:.2e}, in {100 * share:.2g} % of the numbers"
    check.row(name, case, verdict="DIFFERS" if must else "finding", note=note)


def _conclusion(check: Check) -> None:
    """Whether all that was compared between forms agrees."""
    compared = [row for row in check.report.rows if row.name.startswith("bits: ")]
    if any(row.verdict == "failed" for row in check.report.rows) or not compared:
        return
    differing = sum(row.verdict != "OK" for row in compared)
    note = "deterministic mode may use forms of 16 rows beside larger ones"
    if differing:
        note = f"deterministic mode needs uniform forms: {differing} comparisons differ"
    verdict = "finding" if differing else "OK"
    check.row("bits: all forms alike", verdict=verdict, note=note)


def _rows(check: Check) -> Rows:
    """Rows of a shared prefix and various lengths."""
    sizes = check.sizes
    lengths = [sizes.bit_length + 7 * (row % 5) for row in range(sizes.bit_rows)]
    shape = layer_shape(check, sizes.page_sizes[0])
    rows = Rows(shape, lengths, check.device, shared=sizes.bit_shared, queries=True)
    tiles = rows.tiles()
    whole = [(0, lengths[0], lengths[0])]
    forms = [tiles, tiles.uniform(), *(block_m(tiles, lanes) for lanes in FORMS)]
    check.warm(
        [partial(rows.attend, _decodes(rows), form) for form in forms]
        + [partial(rows.attend, whole, form, 0) for form in forms]
    )
    return rows


def _decodes(rows: Rows) -> list[Request]:
    return [(row, 1, length) for row, length in enumerate(rows.lengths)]


def _attention_cases(check: Check, rows: Rows) -> Iterator[tuple[str, str, Callable[[], object]]]:
    tiles = rows.tiles()
    for kind, form, must in (("as tuned", tiles, False), ("uniform", tiles.uniform(), True)):
        for name, call in (
            ("hot = cold", _hot_is_cold),
            ("decode = row of a prefill", _decode_is_prefill),
            ("split = tile", _split_is_tile),
            ("alone = in a batch; tree = plain", _alone_is_together),
        ):
            yield f"bits: {name}", kind, partial(call, check, rows, kind, form, must=must)
    yield "bits: forms", "", lambda: _forms(check, rows)
    yield "bits: graph replay = eager", "", lambda: _replay(check, rows)


def _hot_is_cold(check: Check, rows: Rows, kind: str, form: AttentionTiles, *, must: bool) -> None:
    length = rows.lengths[0]
    cold = rows.attend([(0, length, length)], form)[0]
    for new in (check.sizes.bit_new, length // 2):
        hot = rows.attend([(0, new, length)], form)[0]
        same(check, f"bits: hot ({new} new) = cold", kind, hot, cold[-new:], must=must)


def _decode_is_prefill(
    check: Check, rows: Rows, kind: str, form: AttentionTiles, *, must: bool
) -> None:
    length = rows.lengths[0]
    cold = rows.attend([(0, length, length)], form)[0]
    ends = (1, check.sizes.bit_shared + 1, length)
    decoded = torch.cat([rows.attend([(0, 1, end)], form)[0] for end in ends])
    expected = torch.stack([cold[end - 1] for end in ends])
    same(check, "bits: decode = row of a prefill", kind, decoded, expected, must=must)


def _split_is_tile(
    check: Check, rows: Rows, kind: str, form: AttentionTiles, *, must: bool
) -> None:
    requests = [(0, check.sizes.bit_new, rows.lengths[0]), (1, 3, rows.lengths[1])]
    split, tiled = torch.cat(rows.attend(requests, form)), torch.cat(rows.attend(requests, form, 0))
    same(check, "bits: split = tile", kind, split, tiled, must=must)


def _alone_is_together(
    check: Check, rows: Rows, kind: str, form: AttentionTiles, *, must: bool
) -> None:
    """In the batch the shared chunks are read once for all, alone for one."""
    requests = _decodes(rows)
    together = rows.attend(requests, form)
    some = range(0, len(requests), max(1, len(requests) // 8))
    alone = torch.cat([rows.attend([requests[i]], form)[0] for i in some])
    name = f"bits: alone = in a tree of {len(requests)}"
    same(check, name, kind, alone, torch.cat([together[i] for i in some]), must=must)
    mixed = [*requests[1:], (0, check.sizes.bit_new, rows.lengths[0])]
    beside = torch.cat(rows.attend(mixed, form)[:-1])
    name = "bits: decode beside an extension = decode"
    same(check, name, kind, beside, torch.cat(together[1:]), must=must)


def _forms(check: Check, rows: Rows) -> None:
    """The same work with 16, 64 and 128 lanes a program."""
    tiles, requests = rows.tiles(), _decodes(rows)
    length = rows.lengths[0]
    batches: dict[str, tuple[Sequence[Request], int]] = {
        "decode": (requests, 10**7),
        "prefill": ([(0, length, length)], 0),
    }
    for name, (batch, parts) in batches.items():
        outputs = {
            lanes: torch.cat(rows.attend(batch, block_m(tiles, lanes), parts)) for lanes in FORMS
        }
        for lanes in FORMS[::2]:
            what = f"bits: M={lanes} = M=64, attention"
            same(check, what, name, outputs[lanes], outputs[64], must=lanes == 128)


def _replay(check: Check, rows: Rows) -> None:
    launch = rows.launch(_decodes(rows))
    eager = launch().clone()
    replayed = check.timer.replayed(launch)
    same(check, "bits: graph replay = eager", "decode", replayed, eager, must=True)


def _matmul(check: Check, name: str) -> None:
    outputs, inputs = check.sizes.model.products[name]
    heights = check.sizes.heights
    weight = 0.02 * torch.randn(outputs, inputs, device=check.device)
    weight = weight.to(torch.bfloat16)
    x = torch.randn(heights[-1], inputs, device=check.device, dtype=torch.bfloat16)
    check.warm([partial(matmul, x[:t], weight, uniform=u) for t in heights for u in (False, True)])
    for uniform in (False, True):
        whole = matmul(x, weight, uniform=uniform)
        for height in heights[:-1]:
            out = matmul(x[:height], weight, uniform=uniform)
            case = f"{name} T={height} in T={heights[-1]}"
            kind = "uniform" if uniform else "by rows"
            same(check, f"bits: matmul, {kind}", case, out, whole[:height], must=uniform)


def _rowwise(check: Check) -> None:
    model, heights = check.sizes.model, check.sizes.heights
    x = torch.randn(heights[-1], model.hidden, device=check.device, dtype=torch.bfloat16)
    weight = torch.rand(model.hidden, device=check.device, dtype=torch.bfloat16)
    whole = rms_norm(x, weight, 1e-5)
    alone = torch.cat([rms_norm(row[None], weight, 1e-5) for row in x[:9]])
    same(check, "bits: rms_norm, alone = in a batch", "", alone, whole[:9], must=True)
    wide = torch.randn(heights[-1], 2 * model.inner, device=check.device, dtype=torch.bfloat16)
    alone = torch.cat([silu_mul(row[None]) for row in wide[:9]])
    same(check, "bits: silu_mul, alone = in a batch", "", alone, silu_mul(wide)[:9], must=True)
