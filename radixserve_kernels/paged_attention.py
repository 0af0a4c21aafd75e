"""Causal attention of new tokens over a row's K/V pages: prefill, extend and decode in one op.

One program computes a tile of (new tokens x query heads of one K/V head), stepping over the row's
K/V tokens from position 0 in steps of `block_n` with an online softmax (Milakov and Gimelshein,
arXiv 1805.02867; tiled as in FlashAttention-2, arXiv 2307.08691). Called by the worker's triton
attention backend. The maths is in `reference.py`; the tile sizes are in `tiles.py`.

A lane's arithmetic depends on its position and K/V alone: steps lie at absolute positions, a step
that a lane may not see leaves it as it was, and lanes do not mix. So its bits do not depend on
where the prompt was split into cached and computed part, nor on the other rows. A `decode` tile may
be compiled to other matrix instructions than an `extend` tile; `max_new` chooses between them.
"""

import torch
import triton
import triton.language as tl

from radixserve_kernels.tiles import MAX_GROUP, MAX_HEAD_SIZE, Tile, padded, tile_for

LOG2_E = 1.4426950408889634
# Contracted multiply-adds would round differently from one tile shape to the next.
OPTIONS = {"enable_fp_fusion": False}


@triton.jit
def _row_of_tile(ROW_START, tile, num_rows, TILE_TOKENS: tl.constexpr):
    """The row that owns `tile`: the tiles of row r start at row_start[r] // TILE_TOKENS + r."""
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high) // 2
        first = tl.load(ROW_START + middle) // TILE_TOKENS + middle
        if first <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit(do_not_specialize=["num_rows", "table_stride"])
def paged_attention_kernel(
    Q,  # [T, KV_HEADS * GROUP, HEAD_SIZE]
    K,  # [pages, PAGE_SIZE, KV_HEADS, HEAD_SIZE]
    V,  # as K, same strides
    TABLE,  # [rows, table_stride] page ids
    ROW_START,  # [rows + 1]
    KV_LEN,  # [rows]
    OUT,  # [T, KV_HEADS * GROUP, HEAD_SIZE], contiguous
    num_rows,
    table_stride,
    scale_log2,  # softmax scale * log2(e)
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    Q_TOKEN: tl.constexpr,
    Q_HEAD: tl.constexpr,
    KV_PAGE: tl.constexpr,
    KV_TOKEN: tl.constexpr,
    KV_HEAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    ONE_TILE_PER_ROW: tl.constexpr,
):
    TILE_TOKENS: tl.constexpr = BLOCK_M // GROUP
    kv_head = tl.program_id(0) % KV_HEADS
    tile = tl.program_id(0) // KV_HEADS
    row = tile
    if not ONE_TILE_PER_ROW:
        row = _row_of_tile(ROW_START, tile, num_rows, TILE_TOKENS)
    row_start = tl.load(ROW_START + row)
    num_new = tl.load(ROW_START + row + 1) - row_start
    first = 0
    if not ONE_TILE_PER_ROW:
        first = (tile - (row_start // TILE_TOKENS + row)) * TILE_TOKENS
    if first >= num_new:
        return
    cached = tl.load(KV_LEN + row) - num_new
    end = cached + tl.minimum(first + TILE_TOKENS, num_new)

    lane = tl.arange(0, BLOCK_M)
    token = first + lane // GROUP  # [M], counted from the row's first new token
    live = (token < num_new) & (lane < TILE_TOKENS * GROUP)
    visible = cached + token + 1  # [M], tokens this lane attends to
    d = tl.arange(0, BLOCK_D)
    in_head = d < HEAD_SIZE
    q_head = kv_head * GROUP + lane % GROUP
    q_at = (row_start + token).to(tl.int64) * Q_TOKEN + q_head * Q_HEAD
    out_mask = live[:, None] & in_head[None, :]
    q = tl.load(Q + q_at[:, None] + d[None, :], mask=out_mask, other=0.0)  # [M, D]

    row_pages = TABLE + row.to(tl.int64) * table_stride
    peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in tl.range(0, end, BLOCK_N, num_stages=STAGES):
        position = start + tl.arange(0, BLOCK_N)  # [N]
        known = position < end
        page = tl.load(row_pages + position // PAGE_SIZE, mask=known, other=0).to(tl.int64)
        kv_at = page * KV_PAGE + (position % PAGE_SIZE) * KV_TOKEN + kv_head * KV_HEAD
        k_mask = known[None, :] & in_head[:, None]
        k = tl.load(K + kv_at[None, :] + d[:, None], mask=k_mask, other=0.0)  # [D, N]
        score = tl.dot(q, k, input_precision="ieee") * scale_log2  # [M, N]
        score = tl.where(position[None, :] < visible[:, None], score, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(score, 1))
        shrink = tl.exp2(peak - new_peak)
        weight = tl.exp2(score - new_peak[:, None])
        total = total * shrink + tl.sum(weight, 1)
        v_mask = known[:, None] & in_head[None, :]
        v = tl.load(V + kv_at[:, None] + d[None, :], mask=v_mask, other=0.0)  # [N, D]
        acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        peak = new_peak

    out_at = (row_start + token).to(tl.int64) * (KV_HEADS * GROUP * HEAD_SIZE) + q_head * HEAD_SIZE
    out = (acc / total[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + out_at[:, None] + d[None, :], out, mask=out_mask)


def constants(
    q: torch.Tensor, k_cache: torch.Tensor, tile: Tile, max_new: int
) -> dict[str, int | bool]:
    """The kernel's compile-time arguments for tensors of these shapes and strides (any device)."""
    _, page_size, kv_heads, head_size = k_cache.shape
    group = q.shape[1] // kv_heads
    return {
        "GROUP": group,
        "KV_HEADS": kv_heads,
        "HEAD_SIZE": head_size,
        "PAGE_SIZE": page_size,
        "Q_TOKEN": q.stride(0),
        "Q_HEAD": q.stride(1),
        "KV_PAGE": k_cache.stride(0),
        "KV_TOKEN": k_cache.stride(1),
        "KV_HEAD": k_cache.stride(2),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_D": padded(head_size),
        "STAGES": tile.num_stages,
        "ONE_TILE_PER_ROW": max_new * group <= tile.block_m,
    }


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    row_start: torch.Tensor,
    kv_len: torch.Tensor,
    *,
    scale: float,
    max_new: int,
) -> torch.Tensor:
    """Causal attention of each row's new tokens over all its tokens; returns [T, Hq, D] like q.

    q: [T, Hq, D], the rows' new tokens one after another, any token and head stride.
    k_cache, v_cache: [num_pages, page_size, Hkv, D], same dtype as q, equal strides; the K/V of the
        new tokens is already in them. Strides are compiled in, so they should stay the same.
    page_table: [R, max_pages] int32 page ids; entries past a row's pages are not read.
    row_start: [R + 1] int32, where each row's new tokens start in q; the last is T.
    kv_len: [R] int32, tokens of each row with the new ones, which are its last.
    scale: factor on q.k before the softmax.
    max_new: at least the number of new tokens of the longest row; a smaller one leaves outputs
        unwritten. It chooses the form: a caller that passes the same bound in every step gets the
        same compiled tile, so the same bits on any GPU, for prefill and decode.

    Raises ValueError on shapes, dtypes, strides or devices that do not fit.
    """
    _check(q, k_cache, v_cache, page_table, row_start, kv_len)
    if max_new < 1:
        raise ValueError(f"max_new must be at least 1, is {max_new}")
    num_tokens, q_heads, head_size = q.shape
    num_rows, kv_heads = kv_len.numel(), k_cache.shape[2]
    group = q_heads // kv_heads
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if num_tokens == 0 or num_rows == 0:
        return out
    tile = tile_for(q.element_size(), head_size, group, max_new)
    compiled = constants(q, k_cache, tile, max_new)
    tiles = num_rows
    if not compiled["ONE_TILE_PER_ROW"]:
        tiles += num_tokens // (tile.block_m // group)
    paged_attention_kernel[(tiles * kv_heads,)](
        q,
        k_cache,
        v_cache,
        page_table,
        row_start,
        kv_len,
        out,
        num_rows,
        page_table.stride(0),
        scale * LOG2_E,
        **compiled,
        num_warps=tile.num_warps,
        **OPTIONS,
    )
    return out


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    row_start: torch.Tensor,
    kv_len: torch.Tensor,
) -> None:
    _check_heads(q, k_cache, v_cache)
    num_rows = kv_len.numel()
    shapes = {
        "page_table": (page_table, 2, num_rows),
        "row_start": (row_start, 1, num_rows + 1),
        "kv_len": (kv_len, 1, num_rows),
    }
    for name, (tensor, dims, length) in shapes.items():
        if tensor.dim() != dims or len(tensor) != length:
            raise ValueError(
                f"{name} must have {dims} dimension(s) and length {length} for {num_rows} rows, "
                f"has shape {tuple(tensor.shape)}"
            )
        if tensor.dtype != torch.int32 or (tensor.numel() and tensor.stride(-1) != 1):
            raise ValueError(f"{name} must be int32 with a last stride of 1, is {tensor.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}, q on {q.device}")


def _check_heads(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    if q.dim() != 3 or k_cache.dim() != 4 or q.shape[2] != k_cache.shape[3]:
        raise ValueError(
            f"q must be [T, Hq, D] and k_cache [num_pages, page_size, Hkv, D], are "
            f"{tuple(q.shape)} and {tuple(k_cache.shape)}"
        )
    if v_cache.shape != k_cache.shape or v_cache.stride() != k_cache.stride():
        raise ValueError("k_cache and v_cache must have the same shape and strides")
    _, page_size, kv_heads, head_size = k_cache.shape
    if page_size & (page_size - 1) or not 1 <= page_size <= 256:
        raise ValueError(f"page size must be a power of two up to 256, is {page_size}")
    if q.shape[1] % kv_heads or not 1 <= q.shape[1] // kv_heads <= MAX_GROUP:
        raise ValueError(f"{q.shape[1]} query heads do not fit {kv_heads} K/V heads")
    if head_size % 8 or not 8 <= head_size <= MAX_HEAD_SIZE:
        raise ValueError(f"head size must be a multiple of 8 up to 256, is {head_size}")
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"q must be float32, bfloat16 or float16, is {q.dtype}")
    if (k_cache.dtype, v_cache.dtype) != (q.dtype, q.dtype):
        raise ValueError(f"q is {q.dtype}, the cache {k_cache.dtype} and {v_cache.dtype}")
    if (k_cache.device, v_cache.device) != (q.device, q.device):
        raise ValueError(f"q is on {q.device}, the cache on {k_cache.device} and {v_cache.device}")
    if q.stride(2) != 1 or k_cache.stride(3) != 1:
        raise ValueError("the last stride of q, k_cache and v_cache must be 1")
