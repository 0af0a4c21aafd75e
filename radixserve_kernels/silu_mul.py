"""silu(gate) * up, from the one tensor that the joined product of both gives.

Called by the decoder's triton operators, once per layer, between the products of the MLP.
"""

import torch
import triton
import triton.language as tl

BLOCK = 2048  # outputs per program
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}


@triton.jit
def silu_mul_kernel(
    X,  # [T, 2 * SIZE], gate before up
    OUT,  # [T, SIZE], contiguous
    SIZE: tl.constexpr,
    X_TOKEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = d < SIZE
    gate = tl.load(X + row * X_TOKEN + d, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(X + row * X_TOKEN + SIZE + d, mask=mask, other=0.0).to(tl.float32)
    small = tl.exp(-tl.abs(gate))  # never more than 1: the usual exp(-gate) overflows
    sigmoid = tl.where(gate >= 0, 1.0, small) / (1.0 + small)
    tl.store(OUT + row * SIZE + d, (gate * sigmoid * up).to(OUT.dtype.element_ty), mask=mask)


def constants(x: torch.Tensor) -> dict[str, int]:
    """The kernel's compile-time arguments for an x of this shape and strides (any device)."""
    return {"SIZE": x.shape[1] // 2, "X_TOKEN": x.stride(0), "BLOCK": BLOCK}


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up in float32, rounded once, as a new [T, I].

    x: [T, 2 * I], gate in the first half of each row and up in the second; any token stride.

    Raises ValueError on a shape, dtype or stride that does not fit.
    """
    if x.dim() != 2 or x.shape[1] % 2 or x.shape[1] == 0:
        raise ValueError(f"x must be [T, 2 * I], is {tuple(x.shape)}")
    if x.dtype not in DTYPES:
        raise ValueError(f"x must be float32, bfloat16 or float16, is {x.dtype}")
    if x.stride(1) != 1:
        raise ValueError("the last stride of x must be 1")
    num_tokens, size = x.shape[0], x.shape[1] // 2
    out = torch.empty(num_tokens, size, dtype=x.dtype, device=x.device)
    if num_tokens:
        grid = (num_tokens, triton.cdiv(size, BLOCK))
        silu_mul_kernel[grid](x, out, **constants(x), **OPTIONS)
    return out
