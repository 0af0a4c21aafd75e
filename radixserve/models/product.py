"""Matrix products with fixed weights: the only place that knows in which form they are multiplied.

On a CPU in float32 the weights are packed once by oneDNN, into the blocks that its kernels read.
Against the plain product that is two to three times as fast for 2 to 50 rows; and each output is
summed in an order that depends on neither the number of rows nor the threads, so a row has the same
bits alone and in any batch (`tests/models/test_product.py`). A set of operators may bring a product
of its own instead.
"""

import platform

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from radixserve.models.operators import Linear

WIDE = 192  # outputs packed together where there are at least twice as many inputs: 10 to 20 %
# faster there from 50 rows on (oneDNN's blocks then fit the second-level cache), slower elsewhere


class Product(nn.Module):
    """x [T, inputs] -> x @ weight.T (+ bias) [T, outputs]."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, linear: Linear | None = None
    ) -> None:
        """`weight` is [outputs, inputs]. With a `linear` it stays plain, and that multiplies."""
        super().__init__()
        self._linear = linear
        self.weight = weight
        self.bias = bias
        self._packed: list[tuple[Tensor, Tensor | None]] = []  # weight and bias, by outputs

    def pack(self) -> None:
        """Give up `weight`, once it is filled, for the form that is fast here."""
        if self._linear is None and self.weight is not None and can_pack(self.weight):
            outputs, inputs = self.weight.shape
            size = WIDE if inputs >= 2 * outputs else outputs
            weights = torch.split(self.weight, size)
            biases = [None] * len(weights) if self.bias is None else torch.split(self.bias, size)
            self._packed = [
                (torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()), bias)
                for weight, bias in zip(weights, biases, strict=True)
            ]
            self.weight = None

    def forward(self, x: Tensor) -> Tensor:
        if not self._packed:
            assert self.weight is not None, "weights are packed or plain"
            return (self._linear or F.linear)(x, self.weight, self.bias)
        parts = [
            torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
            for weight, bias in self._packed
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
