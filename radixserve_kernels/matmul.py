"""Matrix product of tokens and fixed weights in which a row's bits depend on the row alone.

Called by the decoder's deterministic operators. Whatever the number of rows, an output is one chain
of additions over its inputs, from the first to the last in steps of `block_k`: no split of that
sum, and one step in all forms (as in Thinking Machines' batch-invariant products, 2025). Block
sizes are data (`tiles.py`).
"""

import torch
import triton
import triton.language as tl

from radixserve_kernels.tiles import UNIFORM_M, MatmulTile, chip_of, matmul_tiles

GROUP_M = 8  # row tiles that go through the weights together, for reuse in the second-level cache
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OPTIONS = {"enable_fp_fusion": False}


@triton.jit(do_not_specialize=["num_rows"])
def matmul_kernel(
    X,  # [T, INPUTS]
    WEIGHT,  # [OUTPUTS, INPUTS], contiguous
    BIAS,  # [OUTPUTS]; not looked at without HAS_BIAS
    OUT,  # [T, OUTPUTS], contiguous
    num_rows,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    X_ROW: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    TILES_N: tl.constexpr = (OUTPUTS + BLOCK_N - 1) // BLOCK_N
    tiles_m = tl.cdiv(num_rows, BLOCK_M)
    group = tl.program_id(0) // (GROUP_M * TILES_N)
    place = tl.program_id(0) % (GROUP_M * TILES_N)
    height = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    row = (group * GROUP_M + place % height).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = (place // height).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_at = X + (row * X_ROW)[:, None] + k[None, :]  # [BLOCK_M, BLOCK_K]
    weight_at = WEIGHT + (column * INPUTS)[None, :] + k[:, None]  # [BLOCK_K, BLOCK_N]
    in_x = (row < num_rows)[:, None]
    in_weight = (column < OUTPUTS)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, INPUTS, BLOCK_K):
        if INPUTS % BLOCK_K == 0:
            x = tl.load(x_at + start, mask=in_x, other=0.0)
            weight = tl.load(weight_at + start, mask=in_weight, other=0.0)
        else:
            left = start + k < INPUTS
            x = tl.load(x_at + start, mask=in_x & left[None, :], other=0.0)
            weight = tl.load(weight_at + start, mask=in_weight & left[:, None], other=0.0)
        total = tl.dot(x, weight, total, input_precision="ieee")
    if HAS_BIAS:
        bias = tl.load(BIAS + column, mask=column < OUTPUTS, other=0.0)
        total += bias.to(tl.float32)[None, :]
    out_at = OUT + (row * OUTPUTS)[:, None] + column[None, :]
    tl.store(out_at, total.to(OUT.dtype.element_ty), mask=in_x & in_weight)


def tile_for(chip: str, itemsize: int, num_rows: int, *, uniform: bool) -> MatmulTile:
    """The smallest tile that holds all rows, else the largest; if uniform, of one instruction.

    chip: one of `tiles.CHIPS`.
    """
    forms = [t for t in matmul_tiles(chip, itemsize) if t.block_m >= UNIFORM_M or not uniform]
    return next((tile for tile in forms if tile.block_m >= num_rows), forms[-1])


def constants(
    x: torch.Tensor, weight: torch.Tensor, tile: MatmulTile, *, has_bias: bool
) -> dict[str, int]:
    """The kernel's compile-time arguments for tensors of these shapes and strides (any device)."""
    return {
        "INPUTS": weight.shape[1],
        "OUTPUTS": weight.shape[0],
        "X_ROW": x.stride(0),
        "HAS_BIAS": has_bias,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "GROUP_M": GROUP_M,
    }


def options(tile: MatmulTile) -> dict[str, int]:
    """What the kernel is compiled with for this tile."""
    return {"num_warps": tile.num_warps, "num_stages": tile.num_stages, **OPTIONS}


def matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    uniform: bool = False,
) -> torch.Tensor:
    """x @ weight.T + bias in float32, rounded once; a row has the same bits in any batch.

    x: [T, K], any row stride. weight: [N, K], contiguous. bias: [N], contiguous. All of one dtype.
    uniform: multiply any number of rows by one kind of matrix instruction, for GPUs whose kinds
        round differently. Without it up to 16 rows have another in 16 bits on sm_90, sm_100 and
        gfx942; on sm_80, and on NVIDIA in float32, there is but one.
    Returns a new contiguous [T, N] tensor of x's dtype.

    Raises ValueError on shapes, dtypes, strides or devices that do not fit.
    """
    _check(x, weight, bias)
    rows, outputs = len(x), len(weight)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    tile = tile_for(chip_of(x.device), x.element_size(), rows, uniform=uniform)
    grid = (triton.cdiv(rows, tile.block_m) * triton.cdiv(outputs, tile.block_n),)
    matmul_kernel[grid](
        x,
        weight,
        x if bias is None else bias,
        out,
        rows,
        **constants(x, weight, tile, has_bias=bias is not None),
        **options(tile),
    )
    return out


def _check(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1] or not weight.numel():
        raise ValueError(
            f"x must be [T, K] and weight [N, K], are {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must be [{len(weight)}] as weight is, is {tuple(bias.shape)}")
    others = [weight] if bias is None else [weight, bias]
    if x.dtype not in DTYPES:
        raise ValueError(f"x must be float32, bfloat16 or float16, is {x.dtype}")
    if any(t.dtype != x.dtype for t in others):
        raise ValueError(f"weight and bias must be {x.dtype}, as x is")
    if any(t.device != x.device for t in others):
        raise ValueError("x, weight and bias must be on one device")
    if x.stride(1) != 1 or not all(t.is_contiguous() for t in others):
        raise ValueError("the last stride of x must be 1, weight and bias contiguous")
