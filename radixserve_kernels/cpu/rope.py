"""Rotation of queries and keys with the write of K/V into pages, in C.

Its twin is `reference.rope_kv_write`, for pages as two caches: pages[:, 0] and pages[:, 1].
"""

import torch

from radixserve_kernels.cpu.attention import KV_DTYPES
from radixserve_kernels.cpu.library import kernels

SLOT_DTYPES = (torch.int32, torch.int64)


def rope_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    turn: torch.Tensor | None,
    pages: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Rotate q and k in place; write token t's k and v to slot slots[t] of every head.

    q: [T, Hq, D]; k, v: [T, Hkv, D], float32, any token and head stride; D is even.
    turn: [T, D / 2] or [T, 1, D / 2] complex64, contiguous: the rotation of dimensions 2i and
        2i + 1 of each token; None: q and k are as they should be.
    pages: [num_pages, 2, Hkv, page_size, D] float32, or float16 (rounded to nearest even),
        contiguous; K at 0, V at 1.
    slots: [T] int32 or int64, contiguous, page id * page_size + offset in the page; with a
        negative one the token is rotated but not written. Two tokens may not name the same slot.

    Raises ValueError on shapes, dtypes, strides or devices that do not fit, IndexError on slots
    beyond the pages.
    """
    _check(q, k, v, turn, pages, slots)
    num_pages, _, num_kv_heads, page_size, size = pages.shape
    tokens, num_heads, _ = q.shape
    if not tokens:
        return
    if int(slots.max()) >= num_pages * page_size:
        raise IndexError(f"slots must be below {num_pages} pages x {page_size}, one is not")
    q_token, q_head, _ = q.stride()
    k_token, k_head, _ = k.stride()
    v_token, v_head, _ = v.stride()
    kernels().rs_rope_kv_write(
        q.data_ptr(), q_token, q_head, k.data_ptr(), k_token, k_head, v.data_ptr(), v_token, v_head,
        None if turn is None else turn.data_ptr(), slots.data_ptr(), slots.dtype is torch.int64,
        pages.data_ptr(), pages.dtype is torch.float16, page_size, tokens, num_heads, num_kv_heads,
        size,
    )  # fmt: skip


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    turn: torch.Tensor | None,
    pages: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    _check_shapes(q.shape, k.shape, v.shape, pages.shape)
    tokens, _, size = q.shape
    if turn is not None:
        _check_turn(turn, tokens, size)
    if slots.shape != (tokens,) or slots.dtype not in SLOT_DTYPES:
        raise ValueError(f"slots must be {tokens} of int32 or int64, are {slots.shape}")
    if not (q.dtype is k.dtype is v.dtype is torch.float32):
        raise ValueError(f"q, k and v must be float32, are {q.dtype}, {k.dtype} and {v.dtype}")
    if pages.dtype not in KV_DTYPES:
        raise ValueError(f"pages must be float32 or float16, are {pages.dtype}")
    if not (q.is_cpu and k.is_cpu and v.is_cpu and pages.is_cpu and slots.is_cpu):
        raise ValueError("tensors must be on the CPU")
    if not (q.stride(-1) == k.stride(-1) == v.stride(-1) == 1 and pages.is_contiguous()):
        raise ValueError("the last stride of q, k and v must be 1, pages contiguous")
    if not slots.is_contiguous():
        raise ValueError("slots must be contiguous")


def _check_shapes(q: torch.Size, k: torch.Size, v: torch.Size, pages: torch.Size) -> None:
    if len(q) != 3 or q[2] % 2:
        raise ValueError(f"q must be [T, Hq, D] with an even D, is {tuple(q)}")
    if len(k) != 3 or k[0] != q[0] or k[2] != q[2] or v != k:
        raise ValueError(
            f"k and v must be [T, Hkv, D] with q's T and D, are {tuple(k)} and {tuple(v)},"
            f" q is {tuple(q)}"
        )
    if len(pages) != 5 or pages[1:3] != (2, k[1]) or pages[4] != q[2]:
        raise ValueError(
            f"pages must be [num_pages, 2, Hkv, page_size, D] with k's Hkv and D, are"
            f" {tuple(pages)}, k is {tuple(k)}"
        )


def _check_turn(turn: torch.Tensor, tokens: int, size: int) -> None:
    shape = turn.shape
    if turn.dtype is not torch.complex64 or (
        shape != (tokens, size // 2) and shape != (tokens, 1, size // 2)
    ):
        raise ValueError(f"turn must be [T, D / 2] complex64, is {tuple(shape)} {turn.dtype}")
    if not (turn.is_cpu and turn.is_contiguous()):
        raise ValueError("turn must be contiguous, on the CPU")
