"""What each op computes, in plain torch: the truth the kernels are tested against.

Same names, arguments and results as the kernels; any device and layout, no limits on sizes. Made to
be read, not to be fast: attention is worked out row by row in float64.
"""

import torch


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
