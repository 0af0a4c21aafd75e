"""Products with fixed weights, and the embedding: who holds weights, in which form.

`operators` says how they are multiplied and packed.
"""

from torch import Tensor, nn

from radixserve.models.blocks import Blocks
from radixserve.models.operators import Operators, Packed, Weights


class Product(nn.Module):
    """x [T, inputs] -> x @ weight.T (+ bias) [T, outputs], or silu of its first half * its second.

    `weight` [outputs, inputs] and `bias` are None once they are packed. With a `kind`, `weight` has
    the bytes of such blocks instead, and has to be packed.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        operators: Operators,
        *,
        gated: bool = False,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.kind = ""
        self._operators = operators
        self._gated = gated
        self.packed: Packed | None = None

    def fill(self, blocks: Blocks) -> None:
        """Have these for weights."""
        self.weight = nn.Parameter(blocks.data, requires_grad=False)
        self.kind = blocks.kind

    def pack(self) -> None:
        """Give up the weights, once they are filled, for the form that is fast here."""
        if self.packed is not None:
            return
        assert self.weight is not None, "weights are packed or plain"
        weights = Blocks(self.weight, self.kind) if self.kind else self.weight
        packed = self._pack(weights, self.bias)
        if packed is not None:
            self.take(packed)

    def take(self, packed: Packed) -> None:
        """Multiply by this from now on."""
        self.packed = packed
        self.weight = self.bias = None

    def form(self) -> Packed:
        """What the weights were packed into."""
        assert self.packed is not None, "these operators pack all products"
        return self.packed

    def _pack(self, weights: Weights, bias: Tensor | None) -> Packed | None:
        if self._gated and (packed := self._operators.pack_gated(weights, bias)):
            return packed
        return self._operators.pack(weights, bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is not None:
            y = self.packed(x)
        else:
            assert self.weight is not None, "weights are packed or plain"
            y = self._operators.linear(x, self.weight, self.bias)
        is_done = self.packed is not None and self.packed.gate_up
        return self._operators.silu_mul(y) if self._gated and not is_done else y
