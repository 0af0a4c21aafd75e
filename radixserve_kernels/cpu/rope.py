"""Rotation of queries and keys with the write of K/V into pages, in C.

Its twin is `reference.rope_kv_write`, for pages as two caches: pages[:, 0] and pages[:, 1].
"""

import torch

from radixserve_kernels.cpu.attention import KV_DTYPES
from radixserve_kernels.cpu.library import kernels


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
    slots: [T] int32 or int64, page id * page_size + offset in the page; with a negative one the
        token is rotated but not written. Two tokens may not name the same slot.

    Raises ValueError on shapes, dtypes, strides or devices that do not fit, IndexError on slots
    beyond the pages.
    """
    _check(q, k, v, turn, pages, slots)
    num_pages, _, _, page_size, size = pages.shape
    if not len(q):
        return
    slots = slots.to(torch.int64).contiguous()
    if int(slots.max()) >= num_pages * page_size:
        raise IndexError(f"slots must be below {num_pages} pages x {page_size}, one is not")
    kernels().rs_rope_kv_write(
        q.data_ptr(), q.stride(0), q.stride(1),
        k.data_ptr(), k.stride(0), k.stride(1),
        v.data_ptr(), v.stride(0), v.stride(1),
        None if turn is None else turn.data_ptr(), slots.data_ptr(), pages.data_ptr(),
        pages.dtype is torch.float16, page_size, len(q), q.shape[1], k.shape[1], size,
    )  # fmt: skip


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    turn: torch.Tensor | None,
    pages: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    if q.dim() != 3 or q.shape[2] % 2:
        raise ValueError(f"q must be [T, Hq, D] with an even D, is {tuple(q.shape)}")
    if k.dim() != 3 or k.shape[::2] != q.shape[::2] or v.shape != k.shape:
        raise ValueError(
            f"k and v must be [T, Hkv, D] with q's T and D, are {tuple(k.shape)} and"
            f" {tuple(v.shape)}, q is {tuple(q.shape)}"
        )
    if pages.dim() != 5 or pages.shape[1:3] != (2, k.shape[1]) or pages.shape[4] != q.shape[2]:
        raise ValueError(
            f"pages must be [num_pages, 2, Hkv, page_size, D] with k's Hkv and D, are"
            f" {tuple(pages.shape)}, k is {tuple(k.shape)}"
        )
    if turn is not None:
        _check_turn(q, turn)
    if slots.shape != q.shape[:1] or slots.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"slots must be {len(q)} of int32 or int64, are {slots.shape}")
    if any(t.dtype is not torch.float32 for t in (q, k, v)):
        raise ValueError(f"q, k and v must be float32, are {q.dtype}, {k.dtype} and {v.dtype}")
    if pages.dtype not in KV_DTYPES:
        raise ValueError(f"pages must be float32 or float16, are {pages.dtype}")
    if any(t.device.type != "cpu" for t in (q, k, v, pages, slots)):
        raise ValueError("tensors must be on the CPU")
    if any(t.stride(-1) != 1 for t in (q, k, v)) or not pages.is_contiguous():
        raise ValueError("the last stride of q, k and v must be 1, pages contiguous")


def _check_turn(q: torch.Tensor, turn: torch.Tensor) -> None:
    shapes = ((len(q), q.shape[2] // 2), (len(q), 1, q.shape[2] // 2))
    if tuple(turn.shape) not in shapes or turn.dtype is not torch.complex64:
        raise ValueError(f"turn must be [T, D / 2] complex64, is {tuple(turn.shape)} {turn.dtype}")
    if turn.device.type != "cpu" or not turn.is_contiguous():
        raise ValueError("turn must be contiguous, on the CPU")
