"""Writes the K/V of new tokens into their places in the pages, in place.

A copy, not arithmetic, unless the cache is float8: then each vector of a head is quantised with a
scale of its own. Called by the worker's triton attention backend for the tokens that a step writes
to a second place, after `rope_kv_write` has rotated their keys.
"""

import torch
import triton
import triton.language as tl

from radixserve_kernels.fp8 import quantise_e4m3
from radixserve_kernels.tiles import padded

BLOCK_T = 16  # tokens per program
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OPTIONS = {"num_warps": 2, "enable_fp_fusion": False}


@triton.jit
def store_vectors(x, CACHE, cache_at, SCALE, scale_at, mask, kept, FP8: tl.constexpr):
    """Store x [BLOCK_T, BLOCK_D] where `mask` is; with FP8 its codes, and scales where `kept` is.

    x is zero past the end of a vector.
    """
    if FP8:
        codes, scale = quantise_e4m3(x.to(tl.float32))
        tl.store(CACHE + cache_at, codes, mask=mask)
        tl.store(SCALE + scale_at, scale, mask=kept)
    else:
        tl.store(CACHE + cache_at, x, mask=mask)


@triton.jit(do_not_specialize=["num_tokens"])
def kv_write_kernel(
    K,  # [T, KV_HEADS, HEAD_SIZE]
    V,  # [T, KV_HEADS, HEAD_SIZE]
    K_CACHE,  # [pages, PAGE_SIZE, KV_HEADS, HEAD_SIZE]
    V_CACHE,  # as K_CACHE, same strides
    SLOTS,  # [T]
    K_SCALE,  # [pages, PAGE_SIZE, KV_HEADS] float32; not looked at without FP8
    V_SCALE,  # as K_SCALE, same strides
    num_tokens,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
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
    head = tl.program_id(0) % KV_HEADS
    token = (tl.program_id(0) // KV_HEADS).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    slot = tl.load(SLOTS + token, mask=token < num_tokens, other=-1).to(tl.int64)  # [BLOCK_T]
    d = tl.arange(0, BLOCK_D)
    mask = (slot >= 0)[:, None] & (d < HEAD_SIZE)[None, :]
    page, offset = slot // PAGE_SIZE, slot % PAGE_SIZE
    cache_at = (page * KV_PAGE + offset * KV_TOKEN + head * KV_HEAD)[:, None] + d[None, :]
    scale_at = page * SCALE_PAGE + offset * SCALE_TOKEN + head * SCALE_HEAD
    k_at = K + (token * K_TOKEN + head * K_HEAD)[:, None] + d[None, :]  # [BLOCK_T, BLOCK_D]
    k = tl.load(k_at, mask=mask, other=0.0)
    store_vectors(k, K_CACHE, cache_at, K_SCALE, scale_at, mask, slot >= 0, FP8)
    v_at = V + (token * V_TOKEN + head * V_HEAD)[:, None] + d[None, :]
    v = tl.load(v_at, mask=mask, other=0.0)
    store_vectors(v, V_CACHE, cache_at, V_SCALE, scale_at, mask, slot >= 0, FP8)


def constants(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> dict[str, int]:
    """The kernel's compile-time arguments for tensors of these shapes and strides (any device)."""
    _, page_size, kv_heads, head_size = k_cache.shape
    scale_strides = (0, 0, 0) if scales is None else scales[0].stride()
    return {
        "KV_HEADS": kv_heads,
        "HEAD_SIZE": head_size,
        "PAGE_SIZE": page_size,
        "K_TOKEN": k.stride(0),
        "K_HEAD": k.stride(1),
        "V_TOKEN": v.stride(0),
        "V_HEAD": v.stride(1),
        "KV_PAGE": k_cache.stride(0),
        "KV_TOKEN": k_cache.stride(1),
        "KV_HEAD": k_cache.stride(2),
        "FP8": scales is not None,
        "SCALE_PAGE": scale_strides[0],
        "SCALE_TOKEN": scale_strides[1],
        "SCALE_HEAD": scale_strides[2],
        "BLOCK_T": BLOCK_T,
        "BLOCK_D": padded(head_size),
    }


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Write token t's K and V to slot slots[t] of every head, in place.

    k, v: [T, Hkv, D], any token and head stride.
    k_cache, v_cache: [num_pages, page_size, Hkv, D], equal strides; same dtype as k and v, or with
        scales uint8 that holds float8 e4m3fn codes of value / scale.
    slots: [T] int32 or int64, page id * page_size + offset in the page; a negative one is skipped.
        Two tokens may not name the same slot.
    scales: k_scale and v_scale [num_pages, page_size, Hkv] float32, any strides but equal ones:
        the least power of two, from 2**-100, that brings the token's vector to at most 448.

    Raises ValueError on shapes, dtypes, strides or devices that do not fit.
    """
    check(k, v, k_cache, v_cache, slots, scales)
    num_tokens, kv_heads, _ = k.shape
    if num_tokens == 0:
        return
    grid = (triton.cdiv(num_tokens, BLOCK_T) * kv_heads,)
    k_scale, v_scale = scales or (k_cache, v_cache)
    kv_write_kernel[grid](
        k, v, k_cache, v_cache, slots, k_scale, v_scale, num_tokens,
        **constants(k, v, k_cache, scales), **OPTIONS,
    )  # fmt: skip


def check(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None,
) -> None:
    """Raise ValueError with a sentence unless the K/V of tokens fit a layer's cache."""
    if k.dim() != 3 or v.shape != k.shape:
        raise ValueError(f"k and v must be [T, Hkv, D], are {tuple(k.shape)} and {tuple(v.shape)}")
    if k_cache.dim() != 4 or k_cache.shape[2:] != k.shape[1:]:
        raise ValueError(
            f"k_cache must be [num_pages, page_size, Hkv, D] with k's heads {tuple(k.shape[1:])}, "
            f"is {tuple(k_cache.shape)}"
        )
    if v_cache.shape != k_cache.shape or v_cache.stride() != k_cache.stride():
        raise ValueError("k_cache and v_cache must have the same shape and strides")
    if slots.shape != k.shape[:1] or slots.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"slots must be {k.shape[0]} int32 or int64 numbers, "
            f"are {tuple(slots.shape)} {slots.dtype}"
        )
    tensors = (k, v, k_cache, v_cache)
    _check_dtypes(k, v, k_cache, v_cache, scales)
    if any(t.device != k.device for t in (*tensors, slots)):
        raise ValueError("k, v, the cache and slots must be on one device")
    if any(t.stride(-1) != 1 for t in tensors) or (slots.numel() > 1 and slots.stride(0) != 1):
        raise ValueError("the last stride of k, v, the cache and slots must be 1")


def _check_dtypes(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None,
) -> None:
    if (scales is not None) != (k_cache.dtype is torch.uint8):
        raise ValueError(f"a uint8 cache and no other has scales: the cache is {k_cache.dtype}")
    if scales is None:
        tensors = (k, v, k_cache, v_cache)
        if any(t.dtype != k.dtype for t in tensors):
            names = ", ".join(str(t.dtype) for t in tensors)
            raise ValueError(f"k, v and the cache must have one dtype: {names}")
        return
    if v_cache.dtype is not torch.uint8 or k.dtype not in DTYPES or v.dtype != k.dtype:
        raise ValueError(
            "with scales k and v must both be float32, bfloat16 or float16, the cache uint8: "
            f"are {k.dtype}, {v.dtype} and {v_cache.dtype}"
        )
    k_scale, v_scale = scales
    if k_scale.shape != k_cache.shape[:3] or v_scale.shape != k_scale.shape:
        raise ValueError(
            f"scales must be {tuple(k_cache.shape[:3])}, are {tuple(k_scale.shape)} "
            f"and {tuple(v_scale.shape)}"
        )
    if v_scale.stride() != k_scale.stride():
        raise ValueError("both scales must have the same strides")
    if any(t.dtype is not torch.float32 or t.device != k.device for t in scales):
        raise ValueError("scales must be float32 and on k's device")
