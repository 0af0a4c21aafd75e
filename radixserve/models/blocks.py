"""Weights as the blocks of GGUF's quantised kinds: a scale for 32 numbers, and their codes.

A checkpoint made from such a file (`gguf_convert`) keeps them, and says so in the tensors' names.
Operators that have code for them take them as they are, for others they become numbers.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from radixserve_kernels.cpu.linear import BLOCK as SIZE
from radixserve_kernels.cpu.linear import BLOCK_BYTES as BYTES


class Blocks(NamedTuple):
    """A matrix [outputs, inputs]; `data` [outputs, inputs / SIZE * BYTES[kind]] uint8."""

    data: Tensor
    kind: str

    @property
    def shape(self) -> tuple[int, int]:
        outputs, row = self.data.shape
        return outputs, row // BYTES[self.kind] * SIZE

    def numbers(self) -> Tensor:
        """The matrix in float32, on the device of `data`; with the bits of gguf's `dequantize`."""
        outputs, inputs = self.shape
        rows = self.data.contiguous().view(-1, BYTES[self.kind])
        scale = rows[:, :2].contiguous().view(torch.float16).float()
        if self.kind == "Q8_0":
            values = rows[:, 2:].contiguous().view(torch.int8).float() * scale
        else:
            codes = rows[:, -16:]
            codes = torch.cat((codes & 15, codes >> 4), 1).float()
            if self.kind == "Q4_0":
                values = (codes - 8) * scale
            else:
                values = codes * scale + rows[:, 2:4].contiguous().view(torch.float16).float()
        return values.view(outputs, inputs)


def stored_name(name: str, kind: str) -> str:
    """The name under which a tensor's blocks stand in a checkpoint."""
    return f"{name}.{kind}"


def told_name(name: str) -> tuple[str, str]:
    """The tensor's name, and the kind of its blocks, "" for numbers."""
    stem, _, kind = name.rpartition(".")
    return (stem, kind) if kind in BYTES else (name, "")
