"""The Triton kernels of a worker's step as plain numpy, so that a runner takes long random lives.

Each reads what its kernel reads: items, look-up, partial results, page tables, places. The sums of
a token are in an order of their own that the batch does not change, so bits can be compared.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch

from radixserve.models.operators import OPERATORS, TORCH
from radixserve.worker.sampling import SAMPLERS
from radixserve.worker.sampling.torch_sampler import TorchSampler


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the plain ones in the place of the kernels, until the test ends."""
    plain = TORCH._replace(rms_norm=rms_norm, linear=linear)
    monkeypatch.setitem(OPERATORS, "triton-deterministic", lambda device: plain)
    monkeypatch.setitem(SAMPLERS, "triton", TorchSampler)
    for name, kernel in (
        ("paged_attention", paged_attention),
        ("rope_kv_write", rope_kv_write),
        ("kv_write", kv_write),
    ):
        monkeypatch.setattr(f"radixserve_kernels.{name}.{name}", kernel)


def linear(x, weight, bias):
    rows = [weight.float() @ row for row in x.float()]
    out = torch.stack(rows) if rows else x.new_empty(0, len(weight), dtype=torch.float32)
    return (out if bias is None else out + bias).to(x.dtype)


def rms_norm(x, weight, eps, residual=None):
    if residual is not None:
        x = residual.add_(x)
    square = x.double().square().mean(-1, keepdim=True)
    return (x.double() * (square + eps).rsqrt() * weight).to(x.dtype)


def rope_kv_write(q, k, v, turn, k_cache, v_cache, slots, *, scales=None):
    for x in (q, k):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2).contiguous())
        x.copy_(torch.view_as_real(pairs * turn[:, None]).flatten(-2))
    kv_write(k, v, k_cache, v_cache, slots, scales=scales)


def kv_write(k, v, k_cache, v_cache, slots, *, scales=None):
    kept = (slots >= 0).nonzero().flatten()
    page, offset = slots[kept].long() // k_cache.shape[1], slots[kept].long() % k_cache.shape[1]
    for half, (x, cache) in enumerate(((k, k_cache), (v, v_cache))):
        if scales is None:
            cache[page, offset] = x[kept]
            continue
        scale = torch.exp2((x[kept].float().abs().amax(-1) / 448).log2().ceil()).clamp(2.0**-100)
        codes = (x[kept].float() / scale[..., None]).to(torch.float8_e4m3fn)
        cache[page, offset] = codes.view(torch.uint8)
        scales[half][page, offset] = scale


def paged_attention(q, k_cache, v_cache, page_table, positions, work, *rest):
    """A token's partial results over chunks, stored and merged as the plan says."""
    step = _Step(q, (k_cache, v_cache), page_table, positions, *rest)
    out = torch.full(q.shape, float("nan"), dtype=q.dtype)
    for slot, first, count, _ in work.tiles.tolist():
        for token in range(first, first + count):
            chunks = range(step.positions[token] // step.chunk + 1)
            out[token] = merged([step.part(token, slot, chunk) for chunk in chunks])
    if work.num_parts:
        _store_parts(step, work)
        _merge_parts(out, work)
    return out


def _store_parts(step, work):
    lookup, part_start = work.lookup.tolist(), work.part_start.tolist()
    for items, count in zip((work.narrow, work.wide), work.counts.tolist(), strict=True):
        for slot, chunk, *members in items[:count].tolist():
            tokens = [lookup[member] for member in members if member >= 0]
            for token in (token for token in tokens if token >= 0):
                part = step.part(token, slot, chunk)
                for to, number in zip((*work.stats, work.parts), part, strict=True):
                    to[part_start[token] + chunk] = torch.from_numpy(number)


def _merge_parts(out, work):
    numbers = [x.numpy() for x in (*work.stats, work.parts)]
    for token, (begin, end) in enumerate(pairwise(work.part_start.tolist())):
        if end > begin:
            out[token] = merged([[x[i] for x in numbers] for i in range(begin, end)])
        elif not len(work.tiles):
            out[token] = 0


class _Step:
    """The queries of a step, and the pages."""

    def __init__(self, q, caches, page_table, positions, tiles, options, scales):
        self.q = q.float().numpy()
        self.caches = caches
        self.scales = scales
        self.table = page_table.numpy()
        self.positions = positions.tolist()
        self.chunk = tiles.chunk
        self.scale = options.scale

    def part(self, token, slot, chunk):
        """Peak, total [heads] and weighted sum [heads, D] of a token over one chunk."""
        stop = min((chunk + 1) * self.chunk, self.positions[token] + 1)
        at = np.arange(chunk * self.chunk, stop)
        assert len(at), "a partial result over nothing"
        k, v = (self._read(half, slot, at) for half in (0, 1))  # [n, Hkv, D]
        heads = self.q[token].reshape(k.shape[1], -1, k.shape[2])  # [Hkv, group, D]
        score = (heads[:, :, None] * k.transpose(1, 0, 2)[:, None]).sum(-1) * self.scale
        peak = score.max(-1)
        weight = np.exp(score - peak[..., None])
        mixed = (weight[..., None] * v.transpose(1, 0, 2)[:, None]).sum(2)
        return peak.ravel(), weight.sum(-1).ravel(), mixed.reshape(-1, k.shape[2])

    def _read(self, half, slot, at):
        size = self.caches[half].shape[1]
        page, offset = (torch.from_numpy(x) for x in (self.table[slot, at // size], at % size))
        found = self.caches[half][page.long(), offset]
        if self.scales is None:
            return found.float().numpy()
        scale = self.scales[half][page.long(), offset]
        return (found.view(torch.float8_e4m3fn).float() * scale[..., None]).numpy()


def merged(parts):
    peak, total, mixed = parts[0]
    for next_peak, next_total, next_mixed in parts[1:]:
        new = np.maximum(peak, next_peak)
        shrink, next_shrink = np.exp(peak - new), np.exp(next_peak - new)
        total = total * shrink + next_total * next_shrink
        mixed = mixed * shrink[:, None] + next_mixed * next_shrink[:, None]
        peak = new
    return torch.from_numpy(mixed / total[:, None])
