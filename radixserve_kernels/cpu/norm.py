"""RMSNorm in C, for float32 rows; its twin is `reference.rms_norm`."""

import torch

from radixserve_kernels.cpu.library import kernels


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    x: [T, n], or [T, H, n] with a weight per head; float32, any strides but the last.
    weight: [n] or [H, n], contiguous.
    residual: as x, contiguous. x is added to it in place, and the sum is normalised.
    Returns a new contiguous tensor like x. A row's bits depend on the row alone.

    Raises ValueError on shapes, dtypes, strides or devices that do not fit.
    """
    _check(x, weight, residual)
    out = torch.empty(x.shape, dtype=torch.float32)
    if out.numel():
        *heads, size = weight.shape
        kernels().rs_rms_norm(
            x.data_ptr(),
            x.stride(0),
            x.stride(1) if heads else 0,
            weight.data_ptr(),
            None if residual is None else residual.data_ptr(),
            out.data_ptr(),
            len(x),
            heads[0] if heads else 1,
            size,
            eps,
        )
    return out


def _check(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None) -> None:
    if x.dim() not in (2, 3) or x.shape[-1] < 1:
        raise ValueError(f"x must be [T, n] or [T, H, n], n at least 1, is {tuple(x.shape)}")
    if weight.shape != x.shape[1:]:
        raise ValueError(
            f"weight must be {tuple(x.shape[1:])} as x's rows are, is {tuple(weight.shape)}"
        )
    if x.stride(-1) != 1 or not weight.is_contiguous():
        raise ValueError("the last stride of x must be 1, weight contiguous")
    _check_kind(x)
    _check_kind(weight)
    if residual is not None:
        if residual.shape != x.shape or not residual.is_contiguous():
            raise ValueError(
                f"residual must have x's shape {tuple(x.shape)} and be contiguous,"
                f" is {tuple(residual.shape)}"
            )
        _check_kind(residual)


def _check_kind(tensor: torch.Tensor) -> None:
    if tensor.dtype is not torch.float32 or not tensor.is_cpu:
        raise ValueError(f"tensors must be float32 on the CPU, one is {tensor.dtype}")
