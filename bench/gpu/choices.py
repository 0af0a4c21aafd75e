"""The sampling kernels against their twins, where this tree has them."""

import importlib
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from bench.gpu.check import Absent, Check

ROWS = 8
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20, "min_p": 0.01},
)


def section(check: Check) -> None:
    for kind in KINDS:
        case = ", ".join(f"{name} {value}" for name, value in kind.items())
        check.case("sample", case, partial(_sample, check, case, kind))


def _sample(check: Check, case: str, kind: dict[str, Any]) -> None:
    """Tokens of a few rows, with a bias, and the logits that were edited for it."""
    names = ("edit_logits", "sample", "sampling_params", "reference_sampling")
    if missing := [name for name in names if find_spec(f"radixserve_kernels.{name}") is None]:
        raise Absent(f"radixserve_kernels has no {', '.join(missing)}")
    edit_logits, sample, params, twin = (
        importlib.import_module(f"radixserve_kernels.{name}") for name in names
    )
    vocab, device = check.sizes.model.vocab, check.device
    rows = [params.Params(slot=i, seed=3 * i, position=50 + i, **kind) for i in range(ROWS)]
    packed = torch.from_numpy(params.pack(rows)).to(device)
    edits = params.pack_edits(ROWS, [(0, 5, 2.5), (3, vocab - 1, -4.0)], [(1, 7)])
    tensors = [torch.from_numpy(x).to(device) for x in (edits.start, edits.token, edits.amount)]
    logits = 3 * torch.randn(ROWS, vocab, device=device)
    counts = torch.zeros(ROWS, 0, dtype=torch.int32, device=device)
    found = []
    for edit, choose in ((edit_logits, sample), (twin, twin)):
        edited = logits.clone()
        maxima = edit.edit_logits(edited, packed, counts, *tensors)
        found.append((edited, choose.sample(edited, packed, maxima, counts)))
    (edited, tokens), (expected, exact) = found
    verdict = "OK" if torch.equal(edited, expected) else "DIFFERS"
    check.row("edit_logits", case, verdict=verdict)
    agreeing = int((tokens == exact).sum())
    # a draw at the border between two tokens may fall to either: sums are not in the same order
    verdict = "OK" if agreeing >= ROWS - (kind["temperature"] > 0) else "DIFFERS"
    check.row("sample", case, verdict=verdict, note=f"{agreeing} of {ROWS} tokens as the twin's")
