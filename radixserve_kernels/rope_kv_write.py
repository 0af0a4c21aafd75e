"""Rotates the queries and keys of new tokens in place, and writes their K/V into the pages.

One pass in the place of a rotation and `kv_write`. Called by the worker's triton attention backend
once per layer and step, before `paged_attention`.
"""

import torch
import triton
import triton.language as tl

from radixserve_kernels import kv_write
from radixserve_kernels.kv_write import store_vectors

MOST_TOKENS = 16  # per program
MOST_NUMBERS = 1024  # of a block of vectors: 16 bytes of each lane in 16 bits
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}


@triton.jit
def _rotated(x, turn, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    """x [BLOCK_T, BLOCK_D], each pair of neighbours times the complex number at its place."""
    real, imaginary = tl.split(tl.reshape(x.to(tl.float32), [BLOCK_T, BLOCK_D // 2, 2]))
    cos, sin = tl.split(tl.reshape(turn, [BLOCK_T, BLOCK_D // 2, 2]))
    turned = tl.join(real * cos - imaginary * sin, real * sin + imaginary * cos)
    return tl.reshape(turned, [BLOCK_T, BLOCK_D])


@triton.jit(do_not_specialize=["num_tokens"])
def rope_kv_write_kernel(
    Q,  # [T, Q_HEADS, HEAD_SIZE]
    K,  # [T, KV_HEADS, HEAD_SIZE]
    V,  # [T, KV_HEADS, HEAD_SIZE]
    TURN,  # [T, HEAD_SIZE] float32: cosine and sine of each pair, contiguous
    K_CACHE,  # [pages, PAGE_SIZE, KV_HEADS, HEAD_SIZE]
    V_CACHE,  # as K_CACHE, same strides
    SLOTS,  # [T]
    K_SCALE,  # [pages, PAGE_SIZE, KV_HEADS] float32; not looked at without FP8
    V_SCALE,  # as K_SCALE, same strides
    num_tokens,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    Q_TOKEN: tl.constexpr,
    Q_HEAD: tl.constexpr,
    K_TOKEN: tl.constexpr,
    K_HEAD: tl.constexpr,
    V_TOKEN: tl.constexpr,
    V_HEAD: tl.constexpr,
    KV_PAGE: tl.constexpr,
    KV_TOKEN: tl.constexpr,
    KV_HEAD: tl.constexpr,
    FP8: tl.constexpr,
    SCALE_PAGE: tl.constexpr,
    SCALE_TOKEN: tl.constexpr,
    SCALE_HEAD: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    HEADS: tl.constexpr = Q_HEADS + KV_HEADS
    head = tl.program_id(0) % HEADS
    token = (tl.program_id(0) // HEADS).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    in_head = (d < HEAD_SIZE)[None, :]
    live = (token < num_tokens)[:, None] & in_head  # [BLOCK_T, BLOCK_D]
    turn_at = TURN + (token * HEAD_SIZE)[:, None] + d[None, :]
    if head < Q_HEADS:
        turn = tl.load(turn_at, mask=live, other=0.0)
        q_at = Q + (token * Q_TOKEN + head * Q_HEAD)[:, None] + d[None, :]
        q = _rotated(tl.load(q_at, mask=live, other=0.0), turn, BLOCK_T, BLOCK_D)
        tl.store(q_at, q.to(Q.dtype.element_ty), mask=live)
    else:
        head -= Q_HEADS
        slot = tl.load(SLOTS + token, mask=token < num_tokens, other=-1).to(tl.int64)  # [BLOCK_T]
        page, offset = slot // PAGE_SIZE, slot % PAGE_SIZE
        cache_at = (page * KV_PAGE + offset * KV_TOKEN + head * KV_HEAD)[:, None] + d[None, :]
        kept = (slot >= 0)[:, None] & in_head
        scale_at = page * SCALE_PAGE + offset * SCALE_TOKEN + head * SCALE_HEAD
        v_at = V + (token * V_TOKEN + head * V_HEAD)[:, None] + d[None, :]
        v = tl.load(v_at, mask=kept, other=0.0)
        store_vectors(v, V_CACHE, cache_at, V_SCALE, scale_at, kept, slot >= 0, FP8)
        turn = tl.load(turn_at, mask=live, other=0.0)
        k_at = K + (token * K_TOKEN + head * K_HEAD)[:, None] + d[None, :]
        k = _rotated(tl.load(k_at, mask=live, other=0.0), turn, BLOCK_T, BLOCK_D)
        k = k.to(K.dtype.element_ty)
        tl.store(k_at, k, mask=live)
        store_vectors(k, K_CACHE, cache_at, K_SCALE, scale_at, kept, slot >= 0, FP8)


def constants(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> dict[str, int]:
    """The kernel's compile-time arguments for tensors of these shapes and strides (any device)."""
    written = kv_write.constants(k, v, k_cache, scales)
    return written | {
        "Q_HEADS": q.shape[1],
        "Q_TOKEN": q.stride(0),
        "Q_HEAD": q.stride(1),
        "BLOCK_T": min(MOST_TOKENS, MOST_NUMBERS // written["BLOCK_D"]),
    }


def rope_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    turn: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Rotate q and k in place, in float32; write token t's k and v to slot slots[t] of every head.

    q: [T, Hq, D]; k, v: [T, Hkv, D], any token and head stride; D is even.
    turn: [T, D / 2] complex64, contiguous: the rotation of dimensions 2i and 2i + 1 of each token.
    k_cache, v_cache: [num_pages, page_size, Hkv, D], equal strides; of q's dtype, or with scales
        uint8: k is rounded to its dtype as without, and then quantised.
    slots: [T] int32 or int64, page id * page_size + offset in the page; with a negative one the
        token is rotated but not written. Two tokens may not name the same slot.
    scales: as in `kv_write`.

    Raises ValueError on shapes, dtypes, strides or devices that do not fit.
    """
    kv_write.check(k, v, k_cache, v_cache, slots, scales)
    _check(q, k, turn)
    num_tokens, q_heads, _ = q.shape
    if num_tokens == 0:
        return
    compiled = constants(q, k, v, k_cache, scales)
    grid = (triton.cdiv(num_tokens, compiled["BLOCK_T"]) * (q_heads + k.shape[1]),)
    k_scale, v_scale = scales or (k_cache, v_cache)
    rope_kv_write_kernel[grid](
        q, k, v, torch.view_as_real(turn), k_cache, v_cache, slots, k_scale, v_scale, num_tokens,
        **compiled, **OPTIONS,
    )  # fmt: skip


def _check(q: torch.Tensor, k: torch.Tensor, turn: torch.Tensor) -> None:
    if q.dim() != 3 or q.shape[2] % 2:
        raise ValueError(f"q must be [T, Hq, D] with an even D, is {tuple(q.shape)}")
    if k.shape[::2] != q.shape[::2]:
        raise ValueError(
            f"k must be [T, Hkv, D] with q's T and D, is {tuple(k.shape)}, q is {tuple(q.shape)}"
        )
    if turn.shape != (q.shape[0], q.shape[2] // 2) or turn.dtype is not torch.complex64:
        raise ValueError(f"turn must be [T, D / 2] complex64, is {tuple(turn.shape)} {turn.dtype}")
    if q.dtype not in DTYPES or q.dtype != k.dtype:
        raise ValueError(
            "q and k must have one dtype, float32, bfloat16 or float16: "
            f"are {q.dtype} and {k.dtype}"
        )
    if any(t.device != q.device for t in (k, turn)):
        raise ValueError("q, k and turn must be on one device")
    if q.stride(-1) != 1:
        raise ValueError("the last stride of q must be 1")
    if not turn.is_contiguous():
        raise ValueError("turn must be contiguous")
