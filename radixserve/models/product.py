"""Matrix products with fixed weights: the only place that knows in which form they are multiplied.

On a CPU in float32 the weights are packed once by oneDNN, into the blocks that its kernels read.
Against the plain product that is two to three times as fast for 2 to 50 rows; and each output is
summed in an order that depends on neither the number of rows nor the threads, so a row has the same
bits alone and in any batch (`tests/models/test_product.py`).
"""

import platform

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Product(nn.Module):
    """x [T, inputs] -> x @ weight.T (+ bias) [T, outputs]."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        """`weight` is [outputs, inputs]."""
        super().__init__()
        self.weight = weight
        self.bias = bias
        self._packed: Tensor | None = None

    def pack(self) -> None:
        """Give up `weight`, once it is filled, for the form that is fast here."""
        if self.weight is not None and can_pack(self.weight):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight)
            self.weight = None

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is None:
            assert self.weight is not None, "weights are packed or plain"
            plain: Tensor = F.linear(x, self.weight, self.bias)
            return plain
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._packed, self.bias, "none", [], ""
        )
        return product

    def added_to(self, total: Tensor, x: Tensor) -> Tensor:
        """total [T, outputs] + this product of x."""
        if self._packed is not None:
            return self.forward(x).add_(total)
        assert self.weight is not None, "weights are packed or plain"
        total = torch.addmm(total, x, self.weight.t())
        return total if self.bias is None else total.add_(self.bias)


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
