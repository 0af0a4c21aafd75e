"""RMSNorm of each row in one pass, after an optional addition into the residual stream.

Called by the decoder's triton operators. With a residual it stands between two products: what the
first one gave is added to the stream, and the second one's input comes out.
"""

import torch
import triton
import triton.language as tl

MAX_SIZE = 32768  # elements of a row, which a program holds in registers
MAX_WARPS = 16
LEAST = 1024  # elements per program: one row, or several where they are short
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OPTIONS = {"enable_fp_fusion": False}


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    X,  # [T, HEADS, SIZE]
    WEIGHT,  # [HEADS, SIZE]
    RESIDUAL,  # [T, HEADS, SIZE], contiguous; not looked at without HAS_RESIDUAL
    OUT,  # [T, HEADS, SIZE], contiguous
    num_rows,  # T * HEADS
    eps,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    X_TOKEN: tl.constexpr,
    X_HEAD: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = row % HEADS
    d = tl.arange(0, BLOCK)
    mask = (row < num_rows)[:, None] & (d < SIZE)[None, :]  # [ROWS, BLOCK]
    x_at = ((row // HEADS) * X_TOKEN + head * X_HEAD)[:, None] + d[None, :]
    dense_at = (row * SIZE)[:, None] + d[None, :]
    x = tl.load(X + x_at, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        total = tl.load(RESIDUAL + dense_at, mask=mask, other=0.0).to(tl.float32) + x
        stored = total.to(RESIDUAL.dtype.element_ty)
        tl.store(RESIDUAL + dense_at, stored, mask=mask)
        x = stored.to(tl.float32)  # normalised as later layers will read it
    scale = tl.rsqrt(tl.sum(x * x, 1) / SIZE + eps)
    weight_at = WEIGHT + (head * SIZE)[:, None] + d[None, :]
    weight = tl.load(weight_at, mask=mask, other=0.0).to(tl.float32)
    out = x * scale[:, None] * weight
    tl.store(OUT + dense_at, out.to(OUT.dtype.element_ty), mask=mask)


def constants(x: torch.Tensor, *, has_residual: bool) -> dict[str, int]:
    """The kernel's compile-time arguments for an x of this shape and strides (any device)."""
    whole = x.unsqueeze(1) if x.dim() == 2 else x
    block = triton.next_power_of_2(whole.shape[2])
    return {
        "HEADS": whole.shape[1],
        "SIZE": whole.shape[2],
        "X_TOKEN": whole.stride(0),
        "X_HEAD": whole.stride(1),
        "HAS_RESIDUAL": has_residual,
        "ROWS": max(1, LEAST // block),
        "BLOCK": block,
    }


def num_warps(size: int) -> int:
    """Warps for rows of `size` elements: the size alone decides the order of the sum."""
    return min(max(triton.next_power_of_2(size) // LEAST, 1), MAX_WARPS)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32, rounded once.

    x: [T, n], or [T, H, n] with a weight per head; any strides but the last, n up to 32,768.
    weight: [n] or [H, n], contiguous, of x's dtype.
    residual: as x, contiguous. x is added to it in place, and the sum, as stored, is normalised.
    Returns a new contiguous tensor like x.

    Raises ValueError on shapes, dtypes, strides or devices that do not fit.
    """
    _check(x, weight, residual)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = x.shape[:-1].numel()
    if rows == 0:
        return out
    compiled = constants(x, has_residual=residual is not None)
    rms_norm_kernel[(triton.cdiv(rows, compiled["ROWS"]),)](
        x,
        weight,
        x if residual is None else residual,
        out,
        rows,
        eps,
        **compiled,
        num_warps=num_warps(x.shape[-1]),
        **OPTIONS,
    )
    return out


def _check(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None) -> None:
    if x.dim() not in (2, 3) or not 1 <= x.shape[-1] <= MAX_SIZE:
        raise ValueError(
            f"x must be [T, n] or [T, H, n], n from 1 to {MAX_SIZE}, is {tuple(x.shape)}"
        )
    if weight.shape != x.shape[1:]:
        raise ValueError(
            f"weight must be {tuple(x.shape[1:])} as x's rows are, is {tuple(weight.shape)}"
        )
    if residual is not None and residual.shape != x.shape:
        raise ValueError(
            f"residual must have x's shape {tuple(x.shape)}, has {tuple(residual.shape)}"
        )
    others = [weight] if residual is None else [weight, residual]
    if x.dtype not in DTYPES:
        raise ValueError(f"x must be float32, bfloat16 or float16, is {x.dtype}")
    if any(t.dtype != x.dtype for t in others):
        raise ValueError(f"weight and residual must be {x.dtype}, as x is")
    if any(t.device != x.device for t in others):
        raise ValueError("x, weight and residual must be on one device")
    if x.stride(-1) != 1 or not all(t.is_contiguous() for t in others):
        raise ValueError("the last stride of x must be 1, weight and residual contiguous")
