"""What each op computes, in plain torch: the truth the kernels are tested against.

Same names, arguments and results as the kernels; any device and layout, no limits on sizes. Made to
be read, not to be fast: arithmetic is done in float64, attention row by row. Those of the choice of
tokens stand in `reference_sampling.py`.
"""

import torch

from radixserve_kernels.attention_options import Options
from radixserve_kernels.reference_sampling import edit_logits, sample

__all__ = [
    "edit_logits",
    "kv_write",
    "matmul",
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
    positions: torch.Tensor,
    token_slot: torch.Tensor,
    options: Options,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Causal attention of new tokens over the tokens of their rows; returns [T, Hq, D] like q.

    Arguments as in `radixserve_kernels.paged_attention`, but who computes what: token_slot [T] is
    the row of `page_table` that a token belongs to.
    """
    if scales is not None:
        k_cache, v_cache = dequantised(k_cache, scales[0]), dequantised(v_cache, scales[1])
    group = q.shape[1] // k_cache.shape[2]
    page_size = k_cache.shape[1]
    out = torch.empty_like(q)
    for slot in token_slot.unique().tolist():
        tokens = (token_slot == slot).nonzero()[:, 0]
        last = positions[tokens].long()
        length = int(last.max()) + 1
        pages = page_table[slot, : -(-length // page_size)].long()
        k = k_cache[pages].flatten(0, 1)[:length].double().repeat_interleave(group, 1)
        v = v_cache[pages].flatten(0, 1)[:length].double().repeat_interleave(group, 1)
        score = torch.einsum("thd,shd->hts", q[tokens].double(), k) * options.scale
        if options.softcap:
            score = options.softcap * (score / options.softcap).tanh()
        position = torch.arange(length, device=q.device)
        hidden = position > last[:, None]  # [new, length]
        if options.window:
            hidden |= position <= last[:, None] - options.window
        weight = score.masked_fill(hidden, -torch.inf).softmax(-1)
        out[tokens] = torch.einsum("hts,shd->thd", weight, v).to(q.dtype)
    return out


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Write token t's K and V to slot slots[t] of every head, in place.

    Arguments as in `radixserve_kernels.kv_write`.
    """
    kept = slots >= 0
    page = slots[kept].long() // k_cache.shape[1]
    offset = slots[kept].long() % k_cache.shape[1]
    if scales is None:
        k_cache[page, offset] = k[kept]
        v_cache[page, offset] = v[kept]
    else:
        k_cache[page, offset], scales[0][page, offset] = quantised(k[kept])
        v_cache[page, offset], scales[1][page, offset] = quantised(v[kept])


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., D] -> its e4m3fn codes [..., D] uint8, and a scale per vector [...] float32.

    The scale is the least power of two from 2**-100 that brings the finite values to at most 448,
    1 for none but zeros; what is not finite becomes NaN, the code 0x7F.
    """
    finite = x.isfinite()
    largest = torch.where(finite, x, 0.0).double().abs().amax(-1)
    mantissa, exponent = torch.frexp(largest / 448)  # mantissa in [0.5, 1)
    exponent = (exponent - (mantissa == 0.5).int()).clamp(min=-100)
    scale = torch.where(largest == 0, 1.0, torch.exp2(exponent.double()))
    codes = (x.double() / scale[..., None]).clamp(-448, 448).float().to(torch.float8_e4m3fn)
    return torch.where(finite, codes.view(torch.uint8), 0x7F).to(torch.uint8), scale.float()


def dequantised(cache: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Codes [..., D] uint8 and scales [...] -> values [..., D] float32, exact."""
    return cache.view(torch.float8_e4m3fn).float() * scale[..., None]


def matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    uniform: bool = False,
) -> torch.Tensor:
    """x @ weight.T + bias, worked out in float64; `uniform` makes no difference to exact numbers.

    Arguments as in `radixserve_kernels.matmul`.
    """
    out = x.double() @ weight.double().T
    return (out if bias is None else out + bias.double()).to(x.dtype)


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
    *,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Rotate q and k in place, worked out in float64; then write k and v as `kv_write` does.

    Arguments as in `radixserve_kernels.rope_kv_write`.
    """
    angle = turn.to(torch.complex128)[:, None]
    for x in (q, k):
        pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)))
        x.copy_(torch.view_as_real(pairs * angle).flatten(-2))
    kv_write(k, v, k_cache, v_cache, slots, scales=scales)
