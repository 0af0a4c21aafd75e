"""Penalties, logit bias and masked stop ids on a step's logits, in place; and maxima per tile.

Called by the worker once per step, before `sample`, which needs the maxima: they show what rows are
lost, and what tiles a search may pass over. A row without edits is only read.
"""

import torch
import triton
import triton.language as tl

from radixserve_kernels.sampling_params import COLUMNS, MAX_VOCAB, TILE

NUM_COLUMNS = tl.constexpr(len(COLUMNS))
SLOT = tl.constexpr(COLUMNS.index("slot"))
HISTORY = tl.constexpr(COLUMNS.index("history"))
REPETITION = tl.constexpr(COLUMNS.index("repetition"))
FREQUENCY = tl.constexpr(COLUMNS.index("frequency"))
PRESENCE = tl.constexpr(COLUMNS.index("presence"))
MASKED = tl.constexpr(torch.finfo(torch.float32).min)  # finite, as a row must keep a maximum
CHUNK = tl.constexpr(256)  # edits looked through at once
OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}


@triton.jit
def edit_logits_kernel(
    LOGITS,  # [S, VOCAB]
    PARAMS,  # [S, NUM_COLUMNS]
    COUNTS,  # [slots, VOCAB]; not looked at by rows without history
    EDIT_START,  # [S + 1]
    EDIT_TOKEN,  # [N]
    EDIT_AMOUNT,  # [N]
    MAXIMA,  # [S, 2, tiles]
    VOCAB: tl.constexpr,
    LOGITS_ROW: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    token = tile * TILE + tl.arange(0, TILE)
    mask = token < VOCAB
    at = LOGITS + row * LOGITS_ROW + token
    x = tl.load(at, mask=mask, other=-float("inf"))
    maxima_at = MAXIMA + row * 2 * tl.num_programs(1) + tile
    tl.store(maxima_at, tile_maximum(x))
    params = PARAMS + row * NUM_COLUMNS
    has_history = tl.load(params + HISTORY) != 0
    first = tl.load(EDIT_START + row)
    last = tl.load(EDIT_START + row + 1)
    if has_history:
        slot = tl.load(params + SLOT)
        seen = tl.load(COUNTS + slot * VOCAB + token, mask=mask, other=0)
        repetition = tl.load(params + REPETITION).to(tl.float64, bitcast=True).to(tl.float32)
        frequency = tl.load(params + FREQUENCY).to(tl.float64, bitcast=True)
        presence = tl.load(params + PRESENCE).to(tl.float64, bitcast=True)
        divided = tl.div_rn(x, tl.zeros_like(x) + repetition)
        repeated = tl.where(x > 0, divided, x * repetition)
        generated = (seen >> 1).to(tl.float64)
        penalty = frequency * generated + tl.where(generated > 0, presence, 0.0)
        x = tl.where(seen > 0, repeated - penalty.to(tl.float32), x)
    # Of the row's edits, ordered by token, those of this tile
    begin = first
    end = first
    for chunk in range(first, last, CHUNK):
        e = chunk + tl.arange(0, CHUNK)
        edited = tl.load(EDIT_TOKEN + e, mask=e < last, other=VOCAB)
        begin += tl.sum((edited < tile * TILE).to(tl.int32), 0)
        end += tl.sum(((edited < (tile + 1) * TILE) & (e < last)).to(tl.int32), 0)
    for e in range(begin, end):
        amount = tl.load(EDIT_AMOUNT + e)
        changed = tl.where(amount == amount, x + amount, MASKED)
        x = tl.where(token == tl.load(EDIT_TOKEN + e), changed, x)
    if has_history | (begin < end):
        tl.store(at, x, mask=mask)
    tl.store(maxima_at + tl.num_programs(1), tile_maximum(x))


@triton.jit
def tile_maximum(x):
    """The maximum, infinite if there is a NaN: what is lost shows as no finite number."""
    return tl.max(tl.where(x == x, x, float("inf")), 0)


def constants(logits: torch.Tensor) -> dict[str, int]:
    """The kernel's compile-time arguments for logits of this shape and stride (any device)."""
    return {"VOCAB": logits.shape[1], "LOGITS_ROW": logits.stride(0), "TILE": TILE}


def edit_logits(
    logits: torch.Tensor,
    params: torch.Tensor,
    counts: torch.Tensor,
    edit_start: torch.Tensor,
    edit_token: torch.Tensor,
    edit_amount: torch.Tensor,
) -> torch.Tensor:
    """Repetition, frequency and presence penalty, then bias, then masks; in place.

    logits: [S, vocab] float32, any row stride.
    params: [S, columns] int64, see `sampling_params.pack`.
    counts: [slots, vocab] int32, contiguous: 2 * (times generated) + (1 if in the prompt). [slots,
        0] will do if no row has `history`.
    edit_start, edit_token, edit_amount: [S + 1] int32, [N] int32, [N] float32, see `Edits`.
    Returns maxima [S, 2, tiles] float32 of every TILE logits, before (0) and after (1) the edits;
        infinite where a logit is NaN.

    Raises ValueError on shapes, dtypes, strides or devices that do not fit.
    """
    edits = (edit_start, edit_token, edit_amount)
    check(logits, params, counts)
    _check_edits(logits, *edits)
    num_rows, vocab = logits.shape
    tiles = triton.cdiv(vocab, TILE)
    maxima = torch.empty(num_rows, 2, tiles, dtype=torch.float32, device=logits.device)
    if num_rows:
        edit_logits_kernel[(num_rows, tiles)](
            logits, params, counts, *edits, maxima, **constants(logits), **OPTIONS
        )
    return maxima


def check(logits: torch.Tensor, params: torch.Tensor, counts: torch.Tensor) -> None:
    """Raise ValueError with a sentence unless the rows' tensors fit each other."""
    if logits.dim() != 2 or not 1 <= logits.shape[1] <= MAX_VOCAB:
        raise ValueError(
            f"logits must be [S, vocab], vocab from 1 to {MAX_VOCAB}, is {tuple(logits.shape)}"
        )
    if logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise ValueError("logits must be float32 with a last stride of 1")
    if params.shape != (len(logits), len(COLUMNS)) or params.dtype != torch.int64:
        raise ValueError(
            f"params must be {len(logits)} x {len(COLUMNS)} int64 numbers, "
            f"are {tuple(params.shape)} {params.dtype}"
        )
    if counts.dim() != 2 or counts.shape[1] not in (0, logits.shape[1]):
        raise ValueError(
            f"counts must be [slots, {logits.shape[1]}] or [slots, 0], is {tuple(counts.shape)}"
        )
    if counts.dtype != torch.int32:
        raise ValueError(f"counts must be int32, is {counts.dtype}")
    if not params.is_contiguous() or not counts.is_contiguous():
        raise ValueError("params and counts must be contiguous")
    if any(t.device != logits.device for t in (params, counts)):
        raise ValueError("logits, params and counts must be on one device")


def _check_edits(
    logits: torch.Tensor, start: torch.Tensor, token: torch.Tensor, amount: torch.Tensor
) -> None:
    if start.shape != (len(logits) + 1,) or token.dim() != 1 or token.shape != amount.shape:
        raise ValueError(
            f"edits must be [{len(logits) + 1}], [N] and [N], "
            f"are {tuple(start.shape)}, {tuple(token.shape)} and {tuple(amount.shape)}"
        )
    if (start.dtype, token.dtype, amount.dtype) != (torch.int32, torch.int32, torch.float32):
        raise ValueError("edit_start and edit_token must be int32, edit_amount float32")
    tensors = (start, token, amount)
    if any(t.device != logits.device or not t.is_contiguous() for t in tensors):
        raise ValueError("edits must be contiguous and on the device of the logits")
