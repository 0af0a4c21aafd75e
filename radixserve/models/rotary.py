"""Rotary position embedding: the table of cosines and sines, and its application to a step.

A table and not a formula in the step: vectorised cosines may round differently at the end of an
array, and a position's value must not depend on which tokens share its step. Called by `decoder`.
"""

import math

import torch
from torch import Tensor

from radixserve.models.spec import Rope


def rotary_table(rope: Rope, head_dim: int, length: int) -> Tensor:
    """[length, head_dim/2] complex64: the rotation of each pair of dimensions at each position."""
    frequencies, magnitude = _frequencies(rope, head_dim)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return torch.complex(angles.cos() * magnitude, angles.sin() * magnitude)


def rotation(table: Tensor, positions: Tensor) -> Tensor:
    """What `rotate` needs for tokens at `positions` [T]: [T, 1, head_dim/2], for all layers."""
    return table.index_select(0, positions).unsqueeze(1)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate `x` [T, heads, head_dim] in float32. Dimension 2i pairs with 2i + 1 (`interleave`)."""
    pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


def interleave(x: Tensor, head_dim: int) -> Tensor:
    """Rows [heads * head_dim, ...] in which i pairs with i + head_dim/2, as rows where pairs meet.

    Checkpoints keep the halves of a head apart. Queries and keys are reordered alike, so their
    products stay what they were, and a pair is one complex number in place.
    """
    halves = x.view(-1, 2, head_dim // 2, *x.shape[1:])
    return halves.transpose(1, 2).reshape(x.shape)


def _frequencies(rope: Rope, dim: int) -> tuple[Tensor, float]:
    """[dim/2] radians per position, and the factor for cos and sin."""
    plain = _plain(rope, dim)
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return plain / llama3_factors(rope, dim), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, plain, dim), _yarn_magnitude(rope)
    return plain, 1.0


def _plain(rope: Rope, dim: int) -> Tensor:
    return 1.0 / rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def llama3_factors(rope: Rope, dim: int) -> Tensor:
    """[dim/2] divisors of the frequencies in Llama 3.1 and later.

    Long wavelengths are stretched by `factor`, short ones kept, with a ramp between them.
    """
    turns = rope.original_max_position * _plain(rope, dim) / (2 * math.pi)
    ramp = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = ramp.clamp(0.0, 1.0)
    return 1.0 / ((1.0 - kept) / rope.factor + kept)


def _yarn(rope: Rope, plain: Tensor, dim: int) -> Tensor:
    """YaRN, arXiv 2309.00071, section 3.2: interpolate the dimensions that turn rarely."""

    def border(turns: float) -> float:
        return (
            dim
            * math.log(rope.original_max_position / (turns * 2 * math.pi))
            / (2 * math.log(rope.theta))
        )

    low, high = border(rope.beta_fast), border(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = (high - low) or 0.001
    stretched = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return plain / rope.factor * stretched + plain * (1 - stretched)


def _yarn_magnitude(rope: Rope) -> float:
    def magnitude(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.attention_factor:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return magnitude(rope.mscale) / magnitude(rope.mscale_all_dim)
    return magnitude(1.0)
