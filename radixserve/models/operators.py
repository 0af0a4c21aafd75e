"""What the decoder does between its products, each in one call: by torch, or by Triton kernels.

An attention backend names the set that goes with it, and `load` gives it to the decoder. Rotation
is not here: the backend does it as it writes the keys into pages.
"""

from collections.abc import Callable
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


class Operators(NamedTuple):
    """One way to compute what is not a product."""

    rms_norm: RMSNorm
    silu_mul: Callable[[Tensor], Tensor]  # [T, 2 * I], gate before up -> silu(gate) * up [T, I]


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


OPERATORS: dict[str, Callable[[torch.device], Operators]] = {
    "torch": lambda device: TORCH,
    "triton": _triton,
}
