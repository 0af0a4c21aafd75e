"""What a model is to the worker. Our own is `decoder`'s; `transformers_model` has all others."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from torch import Tensor

from radixserve.models.spec import ModelShape
from radixserve_kernels.attention_options import Options

# (layer, qk [T, heads + K/V heads, D], v [T, K/V heads, D], turn [T, 1, D/2]) -> [T, heads, D]
# `attend` rotates qk by `turn` (as `rotary.rotate`), in place if it likes; None: they are rotated.
# qk and v are views: the last two dimensions are dense, tokens lie further apart
# one with a `sight` tells operators that do all layers in one call (`Operators.join`) what it reads
Attend = Callable[[int, Tensor, Tensor, Tensor | None], Tensor]


class Model(Protocol):
    """Computes the tokens of one step, whichever requests they belong to. It knows no pages.

    A token's keys and values depend on its request's tokens so far and on nothing else.
    """

    capturable: ClassVar[bool]  # whether a CUDA graph can hold its forward pass

    @property
    def spec(self) -> ModelShape: ...

    @property
    def context_length(self) -> int: ...

    @property
    def options(self) -> Sequence[Options]:
        """What each layer wants of attention, beyond causal order."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Of all weights, in the form they are used in."""
        ...

    @property
    def detail(self) -> str:
        """For the operator: what the model does beyond its context, if that was cut; or empty."""
        ...

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Attend, wanted: Tensor) -> Tensor:
        """Logits [S, vocab] float32 after the tokens at indices `wanted` [S] of this step.

        As `hidden`, and `logits` of that.
        """
        ...

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend, wanted: Tensor) -> Tensor:
        """What the tokens at indices `wanted` [S] of this step give the head, [S, hidden size].

        `tokens` and `positions` are [T]; all three hold int32 or int64. A position counts from the
        start of its request and is below `context_length`. `attend` is called once per layer, in
        order, with all T tokens.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [S, vocab] float32 of [S, hidden size]."""
        ...
