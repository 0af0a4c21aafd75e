"""Writes the K/V of new tokens into their places in the pages, in place.

A copy, not arithmetic: the bits arrive as they are. Called by the worker's triton attention backend
for the tokens that a step writes to a second place, after `rope_kv_write` has rotated their keys.
"""

import torch
import triton
import triton.language as tl

from radixserve_kernels.tiles import padded

BLOCK_T = 16  # tokens per program
OPTIONS = {"num_warps": 2, "enable_fp_fusion": False}


@triton.jit(do_not_specialize=["num_tokens"])
def kv_write_kernel(
    K,  # [T, KV_HEADS, HEAD_SIZE]
    V,  # [T, KV_HEADS, HEAD_SIZE]
    K_CACHE,  # [pages, PAGE_SIZE, KV_HEADS, HEAD_SIZE]
    V_CACHE,  # as K_CACHE, same strides
    SLOTS,  # [T]
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
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    head = tl.program_id(0) % KV_HEADS
    token = (tl.program_id(0) // KV_HEADS).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    slot = tl.load(SLOTS + token, mask=token < num_tokens, other=-1).to(tl.int64)  # [BLOCK_T]
    d = tl.arange(0, BLOCK_D)
    mask = (slot >= 0)[:, None] & (d < HEAD_SIZE)[None, :]
    cache_at = (slot // PAGE_SIZE) * KV_PAGE + (slot % PAGE_SIZE) * KV_TOKEN + head * KV_HEAD
    cache_at = cache_at[:, None] + d[None, :]  # [BLOCK_T, BLOCK_D]
    k = tl.load(K + (token * K_TOKEN + head * K_HEAD)[:, None] + d[None, :], mask=mask)
    tl.store(K_CACHE + cache_at, k, mask=mask)
    v = tl.load(V + (token * V_TOKEN + head * V_HEAD)[:, None] + d[None, :], mask=mask)
    tl.store(V_CACHE + cache_at, v, mask=mask)


def constants(k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor) -> dict[str, int]:
    """The kernel's compile-time arguments for tensors of these shapes and strides (any device)."""
    _, page_size, kv_heads, head_size = k_cache.shape
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
        "BLOCK_T": BLOCK_T,
        "BLOCK_D": padded(head_size),
    }


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write token t's K and V to slot slots[t] of every head, in place.

    k, v: [T, Hkv, D], any token and head stride.
    k_cache, v_cache: [num_pages, page_size, Hkv, D], same dtype as k and v, equal strides.
    slots: [T] int32 or int64, page id * page_size + offset in the page; a negative one is skipped.
        Two tokens may not name the same slot.

    Raises ValueError on shapes, dtypes, strides or devices that do not fit.
    """
    check(k, v, k_cache, v_cache, slots)
    num_tokens, kv_heads, _ = k.shape
    if num_tokens == 0:
        return
    grid = (triton.cdiv(num_tokens, BLOCK_T) * kv_heads,)
    kv_write_kernel[grid](
        k, v, k_cache, v_cache, slots, num_tokens, **constants(k, v, k_cache), **OPTIONS
    )


def check(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
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
    if any(t.dtype != k.dtype for t in tensors):
        raise ValueError(
            "k, v and the cache must have one dtype: " + ", ".join(str(t.dtype) for t in tensors)
        )
    if any(t.device != k.device for t in (*tensors, slots)):
        raise ValueError("k, v, the cache and slots must be on one device")
    if any(t.stride(-1) != 1 for t in tensors) or (slots.numel() > 1 and slots.stride(0) != 1):
        raise ValueError("the last stride of k, v, the cache and slots must be 1")
