"""Weights of every kind for the tests of products: packed, and the same as plain float32."""

from typing import NamedTuple

import gguf
import numpy as np
import torch

from radixserve_kernels.cpu import PackedLinear

BLOCKS = {"Q8_0": (34, 1), "Q4_0": (18, 1), "Q4_1": (20, 2)}  # bytes, scales at their beginning
KINDS = ("F32", "BF16", *BLOCKS)


class Weights(NamedTuple):
    packed: PackedLinear
    plain: torch.Tensor  # [outputs, inputs] float32


def random_blocks(kind: str, outputs: int, inputs: int, generator: torch.Generator) -> np.ndarray:
    """Blocks with every code, and scales of both signs from subnormal to large."""
    size, scales = BLOCKS[kind]
    shape = (outputs, inputs // 32, size)
    blocks = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).numpy()
    scale = torch.randn((*shape[:2], scales), generator=generator) / 100
    scale[torch.rand(scale.shape, generator=generator) < 0.1] *= 1e-4
    blocks[..., : 2 * scales] = scale.numpy().astype(np.float16).view(np.uint8)
    return blocks.reshape(outputs, -1)


def weights(
    kind: str,
    outputs: int,
    inputs: int,
    bias: torch.Tensor | None = None,
    gate_up: bool = False,
) -> Weights:
    """Random ones. The rows they are packed from lie apart, with NaN between them."""
    generator = torch.Generator().manual_seed(outputs + 7 * inputs)
    if kind in BLOCKS:
        blocks = random_blocks(kind, outputs, inputs, generator)
        plain = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])
        apart = torch.full((outputs, blocks.shape[1] + 5), 0xFF, dtype=torch.uint8)
        apart[:, : blocks.shape[1]] = torch.from_numpy(blocks)
        given = apart[:, : blocks.shape[1]]
        packed = PackedLinear.pack_blocks(given, kind, bias, gate_up=gate_up)
        return Weights(packed, torch.from_numpy(plain))
    dtype = torch.float32 if kind == "F32" else torch.bfloat16
    apart = torch.full((outputs, inputs + 3), float("nan"), dtype=dtype)
    apart[:, :inputs] = torch.randn((outputs, inputs), generator=generator)
    given = apart[:, :inputs]
    return Weights(PackedLinear.pack(given, bias, gate_up=gate_up), given.float())


def rows(count: int, size: int, seed: int = 0) -> torch.Tensor:
    """x [count, size], its rows apart with NaN between them."""
    generator = torch.Generator().manual_seed(size + seed)
    memory = torch.full((count, size + 24), float("nan"))
    memory[:, 5 : size + 5] = torch.randn((count, size), generator=generator)
    return memory[:, 5 : size + 5]
