"""Every kernel against its twin in float64, at the shapes of the model."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from bench.gpu.check import Check
from bench.gpu.paged import Rows, Shape
from radixserve_kernels import reference
from radixserve_kernels.kv_write import kv_write
from radixserve_kernels.matmul import matmul
from radixserve_kernels.rms_norm import rms_norm
from radixserve_kernels.rope_kv_write import rope_kv_write
from radixserve_kernels.silu_mul import silu_mul

# Largest error of a vector, relative to its length. In float32 a GPU's exp2 is an approximation.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
EPS = 1e-5
EMPTY: Callable[..., Tensor] = torch.empty


def section(check: Check) -> None:
    from bench.gpu import bits, choices

    with mock.patch.object(torch, "empty", _poisoned):
        check.warm([call for _, _, call in _cases(check, _silent)])
        for name, case, call in _cases(check, partial(compare, check)):
            check.case(name, case, call)
        choices.section(check)
        bits.section(check)


def _poisoned(*args: Any, **kwargs: Any) -> Tensor:
    """As torch.empty, but NaN: a result that a kernel forgets is seen, not an earlier one."""
    tensor = EMPTY(*args, **kwargs)
    return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor


Compare = Callable[[str, str, Tensor, Tensor], object]


def _silent(name: str, case: str, out: Tensor, expected: Tensor) -> None:
    """For the first, uncounted run."""


def compare(check: Check, name: str, case: str, out: Tensor, expected: Tensor) -> None:
    """A row: whether every vector (last dimension) is as near to the exact one as rounding lets."""
    want = expected.double()
    error = (out.double() - want).norm(dim=-1) / want.norm(dim=-1).clamp(min=1e-30)
    worst = float(error.nan_to_num(nan=torch.inf).max())
    verdict = "OK" if worst < TOLERANCE[out.dtype] else "DIFFERS"
    note = f"relative error {worst:.1e}, at most {TOLERANCE[out.dtype]:.0e}"
    check.row(name, case, verdict=verdict, note=note)


def equal(check: Check, name: str, case: str, out: Tensor, expected: Tensor) -> None:
    """A row: whether all numbers are the same, NaN where NaN is expected."""
    same = torch.equal(out.nan_to_num(0.125), expected.nan_to_num(0.125))
    check.row(name, case, verdict="OK" if same else "DIFFERS")


def _cases(check: Check, compare: Compare) -> list[tuple[str, str, Callable[[], object]]]:
    cases: list[tuple[str, str, Callable[[], object]]] = []
    for page_size in check.sizes.page_sizes:
        for dtype in DTYPES if page_size == check.sizes.page_sizes[0] else DTYPES[:1]:
            case = f"{_short(dtype)} page {page_size}"
            call = partial(_attention, check, compare, case, page_size, dtype)
            cases.append(("paged_attention", case, call))
    case = f"fp8 page {check.sizes.page_sizes[0]}"
    call = partial(_attention, check, compare, case, check.sizes.page_sizes[0], DTYPES[0], fp8=True)
    cases.append(("paged_attention", case, call))
    for dtype in DTYPES:
        case = _short(dtype)
        cases += [
            ("matmul", case, partial(_matmul, check, compare, case, dtype)),
            ("rms_norm", case, partial(_rms_norm, check, compare, case, dtype)),
            ("silu_mul", case, partial(_silu_mul, check, compare, case, dtype)),
        ]
    for fp8 in (False, True):
        case = "fp8" if fp8 else _short(DTYPES[0])
        if compare is not _silent:
            cases.append(("kv_write", case, partial(_kv_write, check, case, fp8)))
            cases.append(("rope_kv_write", case, partial(_rope, check, case, fp8)))
    return cases


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _attention(
    check: Check,
    compare: Compare,
    case: str,
    page_size: int,
    dtype: torch.dtype,
    *,
    fp8: bool = False,
) -> None:
    rows = Rows(
        layer_shape(check, page_size, dtype, fp8=fp8),
        check.sizes.lengths,
        check.device,
        queries=True,
    )
    lengths, news = check.sizes.lengths, check.sizes.news
    requests = [(row, new, lengths[row]) for row, new in enumerate(news)]
    split, tiled = rows.launch(requests)(), rows.launch(requests, max_parts=0)()
    expected = rows.expected(requests)
    compare("paged_attention, short rows split", case, split, expected)
    compare("paged_attention, all rows tiled", case, tiled, expected)


def layer_shape(
    check: Check, page_size: int, dtype: torch.dtype = torch.bfloat16, *, fp8: bool = False
) -> Shape:
    model = check.sizes.model
    return Shape(
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        page_size=page_size,
        dtype=dtype,
        fp8=fp8,
    )


def _matmul(check: Check, compare: Compare, case: str, dtype: torch.dtype) -> None:
    outputs, inputs = check.sizes.model.products["qkv"]
    weight = 0.02 * torch.randn(outputs, inputs, device=check.device)
    for height in check.sizes.heights:
        x = torch.randn(height, inputs, device=check.device, dtype=dtype)
        expected = reference.matmul(x.double(), weight.to(dtype).double())
        for uniform in (False, True):
            out = matmul(x, weight.to(dtype), uniform=uniform)
            kind = "uniform" if uniform else "by rows"
            compare(f"matmul, {kind}", f"{case} T={height}", out, expected)


def _rms_norm(check: Check, compare: Compare, case: str, dtype: torch.dtype) -> None:
    size = (check.sizes.heights[-1], check.sizes.model.hidden)
    x, residual = (torch.randn(size, device=check.device, dtype=dtype) for _ in range(2))
    weight = torch.rand(size[1], device=check.device, dtype=dtype)
    stream = residual.clone()
    out = rms_norm(x, weight, EPS, stream)
    total = (x.float() + residual.float()).to(dtype)
    compare("rms_norm, residual", case, stream, x.double() + residual.double())
    expected = reference.rms_norm(total.double(), weight.double(), EPS)
    compare("rms_norm", case, out, expected)


def _silu_mul(check: Check, compare: Compare, case: str, dtype: torch.dtype) -> None:
    size = (check.sizes.heights[-1], 2 * check.sizes.model.inner)
    x = torch.randn(size, device=check.device, dtype=dtype)
    compare("silu_mul", case, silu_mul(x), reference.silu_mul(x.double()))


class Tokens:
    """New tokens' q, k, v and rotation, and where their K/V go; every fifth one nowhere."""

    def __init__(self, check: Check, *, fp8: bool) -> None:
        model, page_size = check.sizes.model, check.sizes.page_sizes[0]
        num_tokens, device = check.sizes.heights[-1], check.device
        heads, kv_heads, size = model.heads, model.kv_heads, model.head_dim
        qkv = torch.randn(num_tokens, heads + 2 * kv_heads, size, device=device)
        self.qkv = qkv.to(torch.bfloat16)
        self.split = [heads, kv_heads, kv_heads]
        angle = torch.rand(num_tokens, size // 2, device=device) * 6.28
        self.turn = torch.polar(torch.ones_like(angle), angle)
        pages = num_tokens // page_size + 2
        self.places = torch.randperm(pages * page_size, device=device)[:num_tokens]
        self.places[::5] = -1
        kind = torch.uint8 if fp8 else torch.bfloat16
        self.pages = torch.zeros(pages, 2, kv_heads, page_size, size, dtype=kind, device=device)
        self.scales = torch.zeros(self.pages.shape[:-1], device=device) if fp8 else None

    def run(self, op: Callable[..., None], *, rotate: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """q, k, v, the pages and the scales after `op` on copies."""
        qkv, pages = self.qkv.clone(), self.pages.clone()
        scales = None if self.scales is None else self.scales.clone()
        q, k, v = torch.split(qkv, self.split, 1)
        keys, values = pages[:, 0].transpose(1, 2), pages[:, 1].transpose(1, 2)
        pair = None
        if scales is not None:
            pair = (scales[:, 0].transpose(1, 2), scales[:, 1].transpose(1, 2))
        head = (q, k, v, self.turn) if rotate else (k, v)
        op(*head, keys, values, self.places, scales=pair)
        return qkv, pages, scales


def _kv_write(check: Check, case: str, fp8: bool) -> None:
    tokens = Tokens(check, fp8=fp8)
    (_, out, scales), (_, expected, exact) = (
        tokens.run(op, rotate=False) for op in (kv_write, reference.kv_write)
    )
    equal(check, "kv_write", case, out, expected)
    if scales is not None and exact is not None:
        equal(check, "kv_write, scales", case, scales, exact)


def _rope(check: Check, case: str, fp8: bool) -> None:
    """The rotation against float64; what is in the pages against a plain write of what it gave."""
    tokens = Tokens(check, fp8=fp8)
    qkv, pages, scales = tokens.run(rope_kv_write, rotate=True)
    expected, _, _ = tokens.run(reference.rope_kv_write, rotate=True)
    compare(check, "rope_kv_write", case, qkv, expected)
    tokens.qkv = qkv
    _, written, exact = tokens.run(reference.kv_write, rotate=False)
    equal(check, "rope_kv_write, pages", case, pages, written)
    if scales is not None and exact is not None:
        equal(check, "rope_kv_write, scales", case, scales, exact)
