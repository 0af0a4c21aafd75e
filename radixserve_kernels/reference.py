"""What each op computes, in plain torch: the truth the kernels are tested against.

Same names, arguments and results as the kernels; any device and layout, no limits on sizes. Made to
be read, not to be fast: arithmetic is done in float64, attention row by row. Those of the choice of
tokens stand in `reference_sampling.py`.
"""

import torch

from radixserve_kernels.reference_sampling import edit_logits, sample

__all__ = [
    "edit_logits",
    "kv_write",
    "paged_attention",
    "rms_norm",
    "rope_kv_write",
    "sample",
    "silu_mul",
]


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    row_start: torch.Tensor,
    kv_len: torch.Tensor,
    *,
    scale: float,
    max_new: int,
) -> torch.Tensor:
    """Causal attention of each row's new tokens over all its tokens; returns [T, Hq, D] like q.

    Arguments as in `radixserve_kernels.paged_attention`. Raises ValueError if a row has more new
    tokens than `max_new`.
    """
    group = q.shape[1] // k_cache.shape[2]
    page_size = k_cache.shape[1]
    starts = row_start.tolist()
    out = torch.empty_like(q)
    for row, length in enumerate(kv_len.tolist()):
        start, stop = starts[row], starts[row + 1]
        if stop - start > max_new:
            raise ValueError(f"row {row} has {stop - start} new tokens, max_new is {max_new}")
        pages = page_table[row, : -(-length // page_size)].long()
        k = k_cache[pages].flatten(0, 1)[:length].double().repeat_interleave(group, 1)
        v = v_cache[pages].flatten(0, 1)[:length].double().repeat_interleave(group, 1)
        score = torch.einsum("thd,shd->hts", q[start:stop].double(), k) * scale
        position = torch.arange(length, device=q.device)
        hidden = position[None, :] > position[length - (stop - start) :, None]  # [new, length]
        weight = score.masked_fill(hidden, -torch.inf).softmax(-1)
        out[start:stop] = torch.einsum("hts,shd->thd", weight, v).to(q.dtype)
    return out


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write token t's K and V to slot slots[t] of every head, in place.

    Arguments as in `radixserve_kernels.kv_write`.
    """
    kept = slots >= 0
    page = slots[kept].long() // k_cache.shape[1]
    offset = slots[kept].long() % k_cache.shape[1]
    k_cache[page, offset] = k[kept]
    v_cache[page, offset] = v[kept]


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, worked out in float64.

    Arguments as in `radixserve_kernels.rms_norm`: x is added into the residual first, if given.
    """
    if residual is not None:
        x = residual.copy_(residual.double() + x.double())
    scale = (x.double().square().mean(-1, keepdim=True) + eps).rsqrt()
    return (x.double() * scale * weight.double()).to(x.dtype)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of x [T, 2 * I], worked out in float64; returns [T, I]."""
    gate, up = x.double().chunk(2, -1)
    return (gate * gate.sigmoid() * up).to(x.dtype)


def rope_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    turn: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Rotate q and k in place, worked out in float64; then write k and v as `kv_write` does.

    Arguments as in `radixserve_kernels.rope_kv_write`.
    """
    angle = turn.to(torch.complex128)[:, None]
    for x in (q, k):
        pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)))
        x.copy_(torch.view_as_real(pairs * angle).flatten(-2))
    kv_write(k, v, k_cache, v_cache, slots)
