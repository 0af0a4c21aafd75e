"""Others' attention over the same K/V: torch's, and FlashInfer's where it is installed.

Each gives a call, or raises `Absent`. They are timed in turn with ours.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from bench.gpu.check import Absent, Check
from bench.gpu.paged import Request, Rows
from bench.gpu.timing import Call

WORKSPACE_BYTES = 128 << 20
CONTIGUOUS_BYTES = 16 << 30  # most that a copy without pages may take

# None: it has no way to do this case
Rival = Callable[[Rows, Sequence[Request], torch.Tensor], Call | None]


def ready(
    check: Check, sets: Sequence[Rows], requests: Sequence[Request], q: torch.Tensor, case: str
) -> dict[str, list[Call]]:
    """Those that can do the case, over each of `sets`, each run once."""
    found: dict[str, list[Call]] = {}
    for name, rival in RIVALS.items():
        calls = check.case(name, case, partial(_prepared, rival, sets, requests, q))
        if calls:
            found[name] = calls
    return found


def _prepared(
    rival: Rival, sets: Sequence[Rows], requests: Sequence[Request], q: torch.Tensor
) -> list[Call]:
    """Empty where the case is none for it. What fails in others' code is no failure of this run."""
    try:
        calls = [call for rows in sets if (call := rival(rows, requests, q)) is not None]
        for call in calls[:1]:
            call()
    except Absent:
        raise
    except Exception as error:
        raise Absent(f"{type(error).__name__}: {error}".replace("\n", " ")[:200]) from None
    return calls


def _sdpa(rows: Rows, requests: Sequence[Request], q: torch.Tensor) -> Call | None:
    """torch's attention over copies that lie in one piece, as if there were no pages."""
    new, length = _equal_rows(requests)
    shape = rows.shape
    # its causal mask knows no cached tokens before the new ones
    if shape.fp8 or 1 < new < length:
        return None
    if len(requests) * length * shape.token_bytes > CONTIGUOUS_BYTES:
        raise Absent("the copy would be too large")
    pages = rows.table[[row for row, _, _ in requests], : -(-length // shape.page_size)].long()
    keys, values = (
        cache[pages].flatten(1, 2)[:, :length].transpose(1, 2).contiguous() for cache in rows.caches
    )
    queries = q.view(len(requests), new, shape.heads, shape.head_dim).transpose(1, 2).contiguous()
    return lambda: F.scaled_dot_product_attention(
        queries, keys, values, is_causal=new > 1, enable_gqa=True
    )


def _varlen(rows: Rows, requests: Sequence[Request], q: torch.Tensor) -> Call | None:
    """torch's FlashAttention over pages, in releases that take them."""
    if rows.shape.fp8:
        return None
    if rows.device.type != "cuda":
        raise Absent("torch's varlen_attn has no CPU kernel")
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        raise Absent("this torch has no varlen_attn") from None
    names = inspect.signature(varlen_attn).parameters
    if not {"block_table", "seqused_k", "window_size", "enable_gqa"} <= names.keys():
        raise Absent("varlen_attn of this torch takes no pages")
    new, length = _equal_rows(requests)
    starts = _int32(rows, range(0, len(q) + 1, new))
    given: dict[str, Any] = {
        "window_size": (-1, 0),
        "enable_gqa": True,
        "seqused_k": _int32(rows, [length] * len(requests)),
        "block_table": rows.table[
            [row for row, _, _ in requests], : -(-length // rows.shape.page_size)
        ].contiguous(),
    }
    keys, values = rows.caches
    return lambda: varlen_attn(q, keys, values, starts, None, new, length, **given)


def _flashinfer() -> Any:
    """The package, if it has compiled kernels: to compile them takes minutes."""
    try:
        flashinfer = importlib.import_module("flashinfer")
    except ImportError as error:
        raise Absent(f"flashinfer cannot be imported: {error}") from None
    folder = Path(flashinfer.__file__ or "").parent
    if not any(folder.glob("data/aot/*/*.so")) and find_spec("flashinfer_jit_cache") is None:
        raise Absent("flashinfer has no compiled kernels in data/aot")
    return flashinfer


def _decode(rows: Rows, requests: Sequence[Request], q: torch.Tensor) -> Call | None:
    """FlashInfer's decode with tensor cores."""
    shape = rows.shape
    new, length = _equal_rows(requests)
    if new > 1 or shape.fp8:
        return None
    flashinfer = _flashinfer()
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        _workspace(rows), "HND", use_tensor_cores=True
    )
    wrapper.plan(
        *_pages(rows, requests, 0, length),
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.page_size,
        q_data_type=shape.dtype,
        kv_data_type=shape.dtype,
    )
    return lambda: wrapper.run(q, rows.pages)


def _prefill(rows: Rows, requests: Sequence[Request], q: torch.Tensor) -> Call | None:
    """FlashInfer's prefill over pages."""
    shape = rows.shape
    new, length = _equal_rows(requests)
    if new == 1 or shape.fp8:
        return None
    flashinfer = _flashinfer()
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(_workspace(rows), "HND")
    wrapper.plan(
        _int32(rows, range(0, len(q) + 1, new)),
        *_pages(rows, requests, 0, length),
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.page_size,
        causal=True,
        q_data_type=shape.dtype,
        kv_data_type=shape.dtype,
    )
    return lambda: wrapper.run(q, rows.pages)


def _cascade(rows: Rows, requests: Sequence[Request], q: torch.Tensor) -> Call | None:
    """FlashInfer's cascade: the shared tokens as one level, each row's own as another."""
    shape = rows.shape
    new, length = _equal_rows(requests)
    if new > 1 or shape.fp8 or not 0 < rows.shared < length:
        return None
    flashinfer = _flashinfer()
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, _workspace(rows), "HND")
    levels = (
        _pages(rows, requests[:1], 0, rows.shared),
        _pages(rows, requests, rows.shared, length),
    )
    starts, indices, lasts = ([level[i] for level in levels] for i in range(3))
    wrapper.plan(
        [_int32(rows, [0, len(q)]), _int32(rows, range(len(q) + 1))],
        starts,
        indices,
        lasts,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.page_size,
        q_data_type=shape.dtype,
    )
    return lambda: wrapper.run(q, rows.pages)


RIVALS: dict[str, Rival] = {
    "torch SDPA, contiguous": _sdpa,
    "torch varlen, paged": _varlen,
    "FlashInfer decode": _decode,
    "FlashInfer prefill": _prefill,
    "FlashInfer cascade": _cascade,
}


def _equal_rows(requests: Sequence[Request]) -> tuple[int, int]:
    """New tokens and length of each of the rows, which are all alike."""
    kinds = {(new, length) for _, new, length in requests}
    if len(kinds) != 1:
        raise Absent("the rows are not alike")
    return kinds.pop()


def _pages(
    rows: Rows, requests: Sequence[Request], begin: int, end: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where each row's page ids for tokens [begin, end) start, the ids, tokens of the last page."""
    size = rows.shape.page_size
    first, last = begin // size, -(-end // size)
    ids = rows.host_table[[row for row, _, _ in requests], first:last]
    starts = np.arange(len(requests) + 1) * ids.shape[1]
    used = [(end - 1) % size + 1] * len(requests)
    return _int32(rows, starts), _int32(rows, ids.ravel()), _int32(rows, used)


def _int32(rows: Rows, numbers: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(numbers, np.int32)).to(rows.device)


def _workspace(rows: Rows) -> torch.Tensor:
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=rows.device)
