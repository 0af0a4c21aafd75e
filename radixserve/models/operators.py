"""What the decoder does in one call each: by torch, or by Triton kernels.

Products are here only where a row of theirs must have the same bits in any batch; else `product`
picks their form. An attention backend names the set that goes with it, and `load` gives it to the
decoder. Rotation is not here: the backend does it as it writes the keys into pages.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class RMSNorm(Protocol):
    """x [..., n] / its root mean square in float32, times `weight` (x's last one or two sizes).

    With a `residual` of x's shape, x is added to it in place, and the sum is what is normalised.
    """

    def __call__(
        self, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
    ) -> Tensor: ...


# x [T, inputs], weight [outputs, inputs], bias [outputs] -> x @ weight.T + bias [T, outputs]
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Operators(NamedTuple):
    """One way to compute what is between the products, and with `linear` the products too."""

    rms_norm: RMSNorm
    silu_mul: Callable[[Tensor], Tensor]  # [T, 2 * I], gate before up -> silu(gate) * up [T, I]
    linear: Linear | None = None


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


TORCH = Operators(_rms_norm, _silu_mul)


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
    "triton": _triton,
    "triton-deterministic": _triton_deterministic,
}
