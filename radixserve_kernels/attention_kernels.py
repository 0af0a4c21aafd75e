"""The device code of `paged_attention`: partial results over absolute chunks, merged in order.

The tokens of a request are cut into chunks [c * CHUNK, (c + 1) * CHUNK) whatever is cached, whoever
shares them, and whichever program computes them. Over one chunk a lane, a (token, query head),
steps by BLOCK_N with an online softmax (Milakov and Gimelshein, arXiv 1805.02867; tiled as in
FlashAttention-2, arXiv 2307.08691) and has a partial result: peak, total, weighted sum. Partial
results are merged from the first chunk to the last (split K/V as in Flash-Decoding; for shared
prefixes Hydragen, arXiv 2402.05099). That order is the only one there is, so a lane's bits depend
on its position and K/V alone.

`tile_attention_kernel` keeps a tile of new tokens and merges in registers: prefill.
`chunk_attention_kernel` computes one chunk for all tokens that stand on the same pages, so that K/V
are read once for all; `merge_kernel` merges what it stored: decode and short extensions.
"""

import triton
import triton.language as tl

from radixserve_kernels.fp8 import e4m3_to_half


@triton.jit
def _finite(peak):
    """The number to subtract: a lane that has seen nothing yet has a peak of -inf."""
    return tl.where(peak == -float("inf"), 0.0, peak)


@triton.jit
def _chunk(
    q,  # [M, D]
    K,
    V,
    K_SCALE,  # one number per token and head of an fp8 cache
    V_SCALE,
    row_pages,  # the row's page ids
    kv_head,
    start,  # a multiple of BLOCK_N
    stop,
    visible,  # [M], a lane sees the positions below
    score_scale,
    softcap_log2,
    window,
    HEAD_SIZE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    KV_PAGE: tl.constexpr,
    KV_TOKEN: tl.constexpr,
    KV_HEAD: tl.constexpr,
    SCALE_PAGE: tl.constexpr,
    SCALE_TOKEN: tl.constexpr,
    SCALE_HEAD: tl.constexpr,
    FP8: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Peak [M], total [M] and weighted sum [M, D] over positions [start, stop) of one chunk."""
    d = tl.arange(0, BLOCK_D)
    in_head = d < HEAD_SIZE
    peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for at in tl.range(start, stop, BLOCK_N, num_stages=STAGES):
        position = at + tl.arange(0, BLOCK_N)  # [N]
        known = position < stop
        page = tl.load(row_pages + position // PAGE_SIZE, mask=known, other=0).to(tl.int64)
        kv_at = page * KV_PAGE + (position % PAGE_SIZE) * KV_TOKEN + kv_head * KV_HEAD
        k_mask = known[None, :] & in_head[:, None]
        k = tl.load(K + kv_at[None, :] + d[:, None], mask=k_mask, other=0)  # [D, N]
        if FP8:
            k = e4m3_to_half(k).to(tl.float32).to(q.dtype)
        score = tl.dot(q, k, input_precision="ieee") * score_scale  # [M, N]
        if FP8:
            scale_at = page * SCALE_PAGE + (position % PAGE_SIZE) * SCALE_TOKEN
            scale_at += kv_head * SCALE_HEAD
            # 256: what e4m3_to_half leaves out
            score *= tl.load(K_SCALE + scale_at, mask=known, other=0.0)[None, :] * 256.0
        if SOFTCAP:
            # softcap * tanh, from e^(-2 |x|), which does not overflow
            small = tl.exp2(tl.abs(score) * -2.8853900817779268)
            score = tl.where(score < 0, small - 1.0, 1.0 - small) / (1.0 + small) * softcap_log2
        distance = visible[:, None] - position[None, :]
        seen = distance > 0
        if WINDOW:
            seen &= distance <= window
        score = tl.where(seen, score, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(score, 1))
        base = _finite(new_peak)
        shrink = tl.exp2(peak - base)
        weight = tl.exp2(score - base[:, None])
        total = total * shrink + tl.sum(weight, 1)
        v_mask = known[:, None] & in_head[None, :]
        v = tl.load(V + kv_at[:, None] + d[None, :], mask=v_mask, other=0)  # [N, D]
        if FP8:
            factor = tl.load(V_SCALE + scale_at, mask=known, other=0.0) * 256.0
            v = (e4m3_to_half(v).to(tl.float32) * factor[:, None]).to(q.dtype)
        acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        peak = new_peak
    return peak, total, acc


@triton.jit
def _merged(peak, total, acc, chunk_peak, chunk_total, chunk_acc):
    """Partial results of earlier chunks and of the next one, as one; `acc` is [M, D]."""
    new_peak = tl.maximum(peak, chunk_peak)
    base = _finite(new_peak)
    shrink = tl.exp2(peak - base)
    chunk_shrink = tl.exp2(chunk_peak - base)
    total = total * shrink + chunk_total * chunk_shrink
    acc = acc * shrink[:, None] + chunk_acc * chunk_shrink[:, None]
    return new_peak, total, acc


@triton.jit
def _result(total, acc):
    """What the tokens attend to; 0 where there is nothing."""
    return acc / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit(do_not_specialize=["table_stride", "window"])
def tile_attention_kernel(
    Q,  # [T, KV_HEADS * GROUP, HEAD_SIZE]
    K,  # [pages, PAGE_SIZE, KV_HEADS, HEAD_SIZE]
    V,  # as K, same strides
    K_SCALE,  # [pages, PAGE_SIZE, KV_HEADS], not looked at unless FP8
    V_SCALE,  # as K_SCALE, same strides
    TABLE,  # [slots, table_stride] page ids
    TILES,  # [programs / KV_HEADS, 4]: slot, first token, tokens, position of the first
    OUT,  # [T, KV_HEADS * GROUP, HEAD_SIZE], contiguous
    table_stride,
    score_scale,
    softcap_log2,
    window,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    Q_TOKEN: tl.constexpr,
    Q_HEAD: tl.constexpr,
    KV_PAGE: tl.constexpr,
    KV_TOKEN: tl.constexpr,
    KV_HEAD: tl.constexpr,
    SCALE_PAGE: tl.constexpr,
    SCALE_TOKEN: tl.constexpr,
    SCALE_HEAD: tl.constexpr,
    FP8: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    kv_head = tl.program_id(0) % KV_HEADS
    tile = TILES + tl.program_id(0) // KV_HEADS * 4
    row_pages = TABLE + tl.load(tile).to(tl.int64) * table_stride
    first_token = tl.load(tile + 1)
    num_tokens = tl.load(tile + 2)
    first_position = tl.load(tile + 3)
    end = first_position + num_tokens

    lane = tl.arange(0, BLOCK_M)
    live = lane < num_tokens * GROUP
    token = (first_token + lane // GROUP).to(tl.int64)
    visible = first_position + lane // GROUP + 1  # [M]
    q_head = kv_head * GROUP + lane % GROUP
    d = tl.arange(0, BLOCK_D)
    mask = live[:, None] & (d < HEAD_SIZE)[None, :]
    q_at = (token * Q_TOKEN + q_head * Q_HEAD)[:, None] + d[None, :]
    q = tl.load(Q + q_at, mask=mask, other=0.0)  # [M, D]

    peak = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    low = 0
    if WINDOW:
        low = tl.maximum(first_position + 1 - window, 0) // BLOCK_N * BLOCK_N
    for chunk in range(low // CHUNK, (end - 1) // CHUNK + 1):
        start = tl.maximum(chunk * CHUNK, low)
        stop = tl.minimum((chunk + 1) * CHUNK, end)
        chunk_peak, chunk_total, chunk_acc = _chunk(
            q, K, V, K_SCALE, V_SCALE, row_pages, kv_head, start, stop, visible,
            score_scale, softcap_log2, window,
            HEAD_SIZE, PAGE_SIZE, KV_PAGE, KV_TOKEN, KV_HEAD, SCALE_PAGE, SCALE_TOKEN, SCALE_HEAD,
            FP8, SOFTCAP, WINDOW, BLOCK_M, BLOCK_N, BLOCK_D, STAGES,
        )  # fmt: skip
        peak, total, acc = _merged(peak, total, acc, chunk_peak, chunk_total, chunk_acc)

    # from the tile's first vector, so that no 64-bit number per lane lives through the loop
    first = first_token.to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP
    out_at = (lane + lane // GROUP * (KV_HEADS * GROUP - GROUP)) * HEAD_SIZE
    out = _result(total, acc).to(OUT.dtype.element_ty)
    tl.store(OUT + first * HEAD_SIZE + out_at[:, None] + d[None, :], out, mask=mask)


@triton.jit(do_not_specialize=["num_parts", "table_stride", "window"])
def chunk_attention_kernel(
    Q,  # as above
    K,
    V,
    K_SCALE,
    V_SCALE,
    TABLE,
    POSITIONS,  # [T] of the tokens in Q
    ITEMS,  # [>= count, 2 + BLOCK_M // GROUP]: slot, chunk, members or -1
    COUNT,  # [1] items
    LOOKUP,  # the token of a member, or -1
    PART_START,  # [T], where the partial results of a token begin: one per chunk
    PARTS,  # [parts, KV_HEADS * GROUP, HEAD_SIZE] float32, contiguous
    STATS,  # [2, parts, KV_HEADS * GROUP] float32, contiguous: peaks, totals
    num_parts,
    table_stride,
    score_scale,
    softcap_log2,
    window,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    Q_TOKEN: tl.constexpr,
    Q_HEAD: tl.constexpr,
    KV_PAGE: tl.constexpr,
    KV_TOKEN: tl.constexpr,
    KV_HEAD: tl.constexpr,
    SCALE_PAGE: tl.constexpr,
    SCALE_TOKEN: tl.constexpr,
    SCALE_HEAD: tl.constexpr,
    FP8: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    MEMBERS: tl.constexpr = BLOCK_M // GROUP
    lane = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    # as many programs whatever the number of items, so that a CUDA graph holds for every step
    for index in range(tl.program_id(0), tl.load(COUNT) * KV_HEADS, tl.num_programs(0)):
        kv_head = index % KV_HEADS
        item = ITEMS + index // KV_HEADS * (2 + MEMBERS)
        chunk = tl.load(item + 1)
        member = tl.load(item + 2 + lane // GROUP, mask=lane < MEMBERS * GROUP, other=-1)
        token = tl.load(LOOKUP + member, mask=member >= 0, other=-1)
        live = token >= 0
        position = tl.load(POSITIONS + token, mask=live, other=-1)
        visible = position + 1  # [M], 0 on lanes that are not live
        start = chunk * CHUNK
        stop = tl.minimum(start + CHUNK, tl.max(visible, 0))
        if WINDOW:
            lowest = tl.min(tl.where(live, visible, 2147483647), 0) - window
            start = tl.maximum(start, tl.maximum(lowest, 0) // BLOCK_N * BLOCK_N)
        if start < stop:
            row_pages = TABLE + tl.load(item).to(tl.int64) * table_stride
            q_head = kv_head * GROUP + lane % GROUP
            mask = live[:, None] & (d < HEAD_SIZE)[None, :]
            q_at = (token.to(tl.int64) * Q_TOKEN + q_head * Q_HEAD)[:, None] + d[None, :]
            q = tl.load(Q + q_at, mask=mask, other=0.0)  # [M, D]
            part = tl.load(PART_START + token, mask=live, other=0) + chunk
            part_head = part * (KV_HEADS * GROUP) + q_head  # there are fewer than 2**31
            peak, total, acc = _chunk(
                q, K, V, K_SCALE, V_SCALE, row_pages, kv_head, start, stop, visible,
                score_scale, softcap_log2, window,
                HEAD_SIZE, PAGE_SIZE, KV_PAGE, KV_TOKEN, KV_HEAD,
                SCALE_PAGE, SCALE_TOKEN, SCALE_HEAD,
                FP8, SOFTCAP, WINDOW, BLOCK_M, BLOCK_N, BLOCK_D, STAGES,
            )  # fmt: skip
            part_at = part_head.to(tl.int64) * HEAD_SIZE
            tl.store(PARTS + part_at[:, None] + d[None, :], acc, mask=mask)
            tl.store(STATS + part_head, peak, mask=live)
            totals = STATS + num_parts.to(tl.int64) * (KV_HEADS * GROUP)
            tl.store(totals + part_head, total, mask=live)


@triton.jit(do_not_specialize=["num_parts", "window"])
def merge_kernel(
    PARTS,  # as above
    STATS,
    POSITIONS,
    PART_START,  # [T + 1]; a token has none if the next one starts at the same place
    OUT,  # [T, HEADS, HEAD_SIZE], contiguous
    num_parts,
    window,
    HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOME_TILED: tl.constexpr,  # tokens without partial results are another kernel's; else padding
    CHUNK: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    BLOCKS: tl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H
    token = tl.program_id(0) // BLOCKS
    head = tl.program_id(0) % BLOCKS * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    in_heads = head < HEADS
    mask = in_heads[:, None] & (d < HEAD_SIZE)[None, :]
    start = tl.load(PART_START + token)
    num_chunks = tl.load(PART_START + token + 1) - start
    if (num_chunks > 0) | (not SOME_TILED):
        first_chunk = 0
        if WINDOW:
            first_chunk = tl.maximum(tl.load(POSITIONS + token) + 1 - window, 0) // CHUNK
        totals = STATS + num_parts.to(tl.int64) * HEADS
        peak = tl.full([BLOCK_H], -float("inf"), tl.float32)
        total = tl.zeros([BLOCK_H], tl.float32)
        acc = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
        for chunk in tl.range(first_chunk, num_chunks, num_stages=STAGES):
            at = (start + chunk).to(tl.int64) * HEADS + head
            chunk_peak = tl.load(STATS + at, mask=in_heads, other=0.0)
            chunk_total = tl.load(totals + at, mask=in_heads, other=0.0)
            chunk_acc = tl.load(
                PARTS + (at * HEAD_SIZE)[:, None] + d[None, :], mask=mask, other=0.0
            )
            peak, total, acc = _merged(peak, total, acc, chunk_peak, chunk_total, chunk_acc)
        out_at = (token.to(tl.int64) * HEADS + head) * HEAD_SIZE
        out = _result(total, acc).to(OUT.dtype.element_ty)
        tl.store(OUT + out_at[:, None] + d[None, :], out, mask=mask)
