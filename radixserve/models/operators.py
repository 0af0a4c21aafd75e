"""What the decoder does in one call each: by torch, by Triton kernels, or by those for CPUs.

An attention backend names the set that goes with it, and `load` gives it to the decoder. Rotation
is not here: the backend does it as it writes the keys into pages.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from radixserve.models.blocks import Blocks
from radixserve.models.onednn import OneDNN, can_pack


class RMSNorm(Protocol):
    """x [..., n] / its root mean square in float32, times `weight` (x's last one or two sizes).

    With a `residual` of x's shape, x is added to it in place, and the sum is what is normalised.
    """

    def __call__(
        self, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
    ) -> Tensor: ...


# x [T, inputs], weight [outputs, inputs], bias [outputs] -> x @ weight.T + bias [T, outputs]
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Packed(Protocol):
    """A product with weights of its own, in the form that is fast here."""

    @property
    def gate_up(self) -> bool:
        """Whether silu(gate) * up stands behind it."""
        ...

    @property
    def nbytes(self) -> int: ...

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, inputs] -> [T, outputs]; of `pack_gated`, silu(gate) * up [T, outputs / 2]."""
        ...


class Table(Packed, Protocol):
    """A product whose weights can be read too, as an embedding's and a head's that are one are."""

    def rows(self, indices: Tensor) -> Tensor:
        """Rows of the weights, [n, inputs] float32, for indices [n] int64."""
        ...


Weights = Tensor | Blocks  # [outputs, inputs]
# weights, bias [outputs] -> that; None: they had better stay as they are
Pack = Callable[[Weights, Tensor | None], Packed | None]


class Layer(NamedTuple):
    """What there is of a decoder's layer: packed products, and the weights of norms."""

    qkv: Packed
    output: Packed
    gate_up: Packed
    down: Packed
    qk_norm: Tensor | None
    mlp_norm: Tensor
    next_norm: Tensor  # of the layer behind it, or the model's


class Shape(NamedTuple):
    """Sizes of a decoder's attention, and the norms' epsilon."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    eps: float


# (x [T, hidden] and it normalised, which change; turn; the attend's sight; wanted [S]) ->
# [S, hidden], what `Model.hidden` gives
Run = Callable[[Tensor, Tensor, Tensor, Any, Tensor], Tensor]


class Keep(NamedTuple):
    """How what was packed becomes tensors and a form, which JSON can hold, and comes back."""

    layout: int  # another one does not understand them
    save: Callable[[Any], tuple[dict[str, Tensor], list[Any]]]
    restore: Callable[[dict[str, Tensor], list[Any]], Any]


class Operators(NamedTuple):
    """One way to compute. A product's weights are packed once they are filled, if they can be.

    `pack_gated`: gate and up projection with `silu_mul` behind them, in one. `pack_table`: an
    embedding; without it embeddings stay plain, beside a head that is packed from the same weights.
    `join`: all layers in one call, for an `attend` with a `sight`, which says what it would read.
    """

    rms_norm: RMSNorm
    silu_mul: Callable[[Tensor], Tensor]  # [T, 2 * I], gate before up -> silu(gate) * up [T, I]
    linear: Linear = F.linear  # for weights that are not packed
    pack: Pack = lambda weight, bias: None
    pack_gated: Pack = lambda weight, bias: None
    pack_table: Callable[[Weights], Table] | None = None
    join: Callable[[Sequence[Layer], Shape], Run] | None = None
    takes_blocks: bool = False  # whether these can pack blocks; all others get numbers
    keep: Keep | None = None  # None: they pack at each start


def _rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """Fewer passes than F's."""
    if residual is not None:
        x = residual.add_(x)
    x32 = x.float()
    norm: Tensor = torch.linalg.vector_norm(x32, dim=-1, keepdim=True)
    scale = norm.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
    return (x32 * scale).to(x.dtype) * weight


def _silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def _pack_onednn(weights: Weights, bias: Tensor | None) -> Packed | None:
    assert not isinstance(weights, Blocks), "these operators take numbers"
    return OneDNN(weights, bias) if can_pack(weights) else None


TORCH = Operators(_rms_norm, _silu_mul, pack=_pack_onednn)


def _cpu(device: torch.device) -> Operators:
    """The C kernels of `radixserve_kernels.cpu`, which have to be there."""
    from radixserve_kernels.cpu import Layers, LayerWeights, PackedLinear, rms_norm
    from radixserve_kernels.cpu.linear import LAYOUT

    def pack(weights: Weights, bias: Tensor | None = None, *, gated: bool = False) -> PackedLinear:
        if isinstance(weights, Blocks):
            return PackedLinear.pack_blocks(*weights, bias, gate_up=gated)
        return PackedLinear.pack(weights, bias, gate_up=gated)

    def join(layers: Sequence[Layer], shape: Shape) -> Run:
        sizes = shape._asdict()
        return Layers([LayerWeights(*cast(Any, layer)) for layer in layers], **sizes)

    def save(packed: PackedLinear) -> tuple[dict[str, Tensor], list[Any]]:
        tensors = {"panels": packed.panels}
        if packed.bias is not None:
            tensors["bias"] = packed.bias
        return tensors, [packed.kind, packed.inputs, packed.outputs, packed.gate_up]

    def restore(tensors: dict[str, Tensor], form: list[Any]) -> PackedLinear:
        kind, inputs, outputs, gate_up = form
        bias = tensors.get("bias")
        return PackedLinear(tensors["panels"], kind, inputs, outputs, bias, gate_up)

    return Operators(
        rms_norm,
        _silu_mul,
        join=join,
        pack=pack,
        pack_gated=partial(pack, gated=True),
        pack_table=pack,
        takes_blocks=True,
        keep=Keep(LAYOUT, save, restore),
    )


def _triton(device: torch.device) -> Operators:
    """The kernels of `radixserve_kernels`. Imports triton when called, not before."""
    if device.type == "cpu":
        from radixserve_kernels.interpret import enable

        enable()  # has to come before the kernels are imported
    from radixserve_kernels.rms_norm import rms_norm
    from radixserve_kernels.silu_mul import silu_mul

    return Operators(rms_norm, silu_mul)


def _triton_deterministic(device: torch.device) -> Operators:
    """Those of `_triton`, and products in which a row's bits depend on the row alone.

    Uniform: that kinds of matrix instructions agree to the last bit is not established.
    """
    operators = _triton(device)
    from radixserve_kernels.matmul import matmul

    return operators._replace(linear=partial(matmul, uniform=True))


OPERATORS: dict[str, Callable[[torch.device], Operators]] = {
    "torch": lambda device: TORCH,
    "cpu": _cpu,
    "triton": _triton,
    "triton-deterministic": _triton_deterministic,
}
