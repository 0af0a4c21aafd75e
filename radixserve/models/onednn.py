"""Products by oneDNN, which packs float32 weights into the blocks that its kernels read.

Where the kernels for CPUs cannot be built. Against the plain product that is two to three times as
fast for 2 to 50 rows; and each output is summed in an order that depends on neither the number of
rows nor the threads, so a row has the same bits alone and in any batch.
"""

import platform

import torch
from torch import Tensor

WIDE = 192  # outputs packed together where there are at least twice as many inputs: 10 to 20 %
# faster there from 50 rows on (oneDNN's blocks then fit the second-level cache), slower elsewhere


class OneDNN:
    """A `Packed` product."""

    gate_up = False

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight [outputs, inputs], bias [outputs]; both as `can_pack` wants them."""
        outputs, inputs = weight.shape
        size = WIDE if inputs >= 2 * outputs else outputs
        weights = torch.split(weight, size)
        biases = [None] * len(weights) if bias is None else torch.split(bias, size)
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._parts: list[tuple[Tensor, Tensor | None]] = [
            (torch.ops.mkldnn._reorder_linear_weight(part.contiguous()), part_bias)
            for part, part_bias in zip(weights, biases, strict=True)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        parts: list[Tensor] = [
            torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
            for weight, bias in self._parts
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def can_pack(weight: Tensor) -> bool:
    """Whether this torch has oneDNN's packed products for such weights on this machine."""
    return (
        weight.device.type == "cpu"
        and weight.dtype is torch.float32
        and platform.machine() in ("x86_64", "AMD64")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
