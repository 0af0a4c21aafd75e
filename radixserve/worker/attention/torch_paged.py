"""Attention over pages by batched torch operators: the real backend on a CPU.

Rows with one new token are padded into groups of similar length; a row with several is computed
alone. The query heads that share a K/V head become query positions (one new token) or a dimension
of stride 0 in K and V (several), so K and V are never expanded. Indices and masks are made once
per step; per layer a group costs one gather of its pages and one `scaled_dot_product_attention`.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from radixserve.worker.attention.backend import Attend
from radixserve.worker.batch import Batch
from radixserve.worker.kv_cache import KVCache

GROUP_BYTES = 8 << 20  # most K/V gathered at once for several rows: stays in the L3 cache
SIMILAR = 0.75  # a group's rows have at least this share of the pages of its longest row


class TorchPaged:
    """The `Attention` made of torch operators."""

    def __init__(self, cache: KVCache, scale: float) -> None:
        self._cache = cache
        self._scale = scale
        self._scratch = Scratch(cache.pages[0])

    def plan(self, batch: Batch) -> Attend:
        new = np.diff(batch.host_row_start)
        decode = np.flatnonzero(new == 1)
        num_pages = -(-batch.host_kv_len[decode] // self._cache.page_size)
        page = self._cache.pages[0][0]
        parts: list[Part] = [
            DecodeGroup(decode[group], batch, self._scratch, self._scale)
            for group in group_similar(num_pages.tolist(), GROUP_BYTES // page.nbytes)
        ]
        parts += [
            ExtendRow(row, batch, self._scratch, self._scale)
            for row in np.flatnonzero(new > 1).tolist()
        ]

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            tokens = self._cache.tokens(layer)
            tokens[:, 0].index_copy_(0, batch.write_slots, k)
            tokens[:, 1].index_copy_(0, batch.write_slots, v)
            out = torch.empty_like(q)
            for part in parts:
                part.attend(self._cache.pages[layer], q, out)
            return out

        return attend


class Part(Protocol):
    """Some rows of a step that are computed together."""

    def attend(self, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> None:
        """Fill the rows' part of `out` [T, Hq, D] from q [T, Hq, D] and the layer's pages."""


class DecodeGroup:
    """Rows with one new token and similar lengths, padded to the longest."""

    def __init__(self, rows: np.ndarray, batch: Batch, scratch: "Scratch", scale: float) -> None:
        lengths = batch.host_kv_len[rows]
        past = np.arange(lengths.max()) >= lengths[:, None]  # [rows, longest]
        self._kv = KVReader(batch.host_page_table[rows], lengths, scratch)
        self._tokens = torch.from_numpy(batch.host_row_start[rows]).to(scratch.device)
        self._mask: torch.Tensor | None = None
        if past.any():
            self._mask = additive_mask(past, scratch)[:, None, None]
        self._scale = scale

    def attend(self, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> None:
        key, value = self._kv.read(pages)  # [rows, longest, Hkv, D]
        rows, _, num_kv_heads, head_dim = key.shape
        query = q.index_select(0, self._tokens).view(rows, num_kv_heads, -1, head_dim)
        found = scaled_dot_product_attention(
            query,  # [rows, Hkv, G, D]
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=self._mask,
            scale=self._scale,
        )
        out.index_copy_(0, self._tokens, found.reshape(rows, *q.shape[1:]))


class ExtendRow:
    """A row with several new tokens."""

    def __init__(self, row: int, batch: Batch, scratch: "Scratch", scale: float) -> None:
        self._begin, self._end = batch.host_row_start[row : row + 2].tolist()
        lengths = batch.host_kv_len[row : row + 1]
        self._kv = KVReader(batch.host_page_table[row : row + 1], lengths, scratch)
        length = int(lengths[0])
        start = length - (self._end - self._begin)
        self._mask: torch.Tensor | None = None  # from position 0 on, the operator knows the mask
        if start:
            self._mask = additive_mask(
                np.arange(length) > np.arange(start, length)[:, None], scratch
            )
        self._scale = scale

    def attend(self, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> None:
        key, value = self._kv.read(pages)  # [1, length, Hkv, D]
        num_kv_heads, head_dim = key.shape[2:]
        new = self._end - self._begin
        query = q[self._begin : self._end].reshape(new, num_kv_heads, -1, head_dim)
        shared = (num_kv_heads, query.shape[2], -1, head_dim)  # the G heads read the same memory
        found = scaled_dot_product_attention(
            query.permute(1, 2, 0, 3),  # [Hkv, G, n, D]
            key.permute(2, 0, 1, 3).expand(shared),
            value.permute(2, 0, 1, 3).expand(shared),
            attn_mask=self._mask,
            is_causal=self._mask is None,
            scale=self._scale,
        )
        out[self._begin : self._end] = found.permute(2, 0, 1, 3).flatten(1, 2)


class KVReader:
    """Where the K/V of some rows is found, the same in all layers.

    One row whose page ids are consecutive is read in place; otherwise pages are gathered.
    """

    def __init__(self, page_table: np.ndarray, lengths: np.ndarray, scratch: "Scratch") -> None:
        """`page_table` [rows, enough pages], `lengths` [rows]: tokens of each row."""
        self._rows = len(lengths)
        self._longest = int(lengths.max())
        self._scratch = scratch
        columns = -(-self._longest // scratch.page_size)
        ids = page_table[:, :columns]
        self._slice: slice | None = None
        if self._rows == 1 and (np.diff(ids[0]) == 1).all():
            self._slice = slice(int(ids[0, 0]), int(ids[0, -1]) + 1)
        self._ids = torch.from_numpy(ids.astype(np.int64).ravel()).to(scratch.device)
        past = np.arange(columns * scratch.page_size) >= lengths[:, None]
        self._past = torch.from_numpy(np.flatnonzero(past)).to(scratch.device)

    def read(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a layer, each [rows, longest, Hkv, D]; valid until the next read.

        Zero past a row's end: what a page holds there may be NaN, which no mask takes away.
        """
        if self._slice:
            found = pages[self._slice]
        else:
            found = self._scratch.gather(pages, self._ids)
            if self._rows > 1:
                found.flatten(0, 1).index_fill_(0, self._past, 0)
        kv = found.view(self._rows, -1, *found.shape[2:])[:, : self._longest]
        return kv[:, :, 0], kv[:, :, 1]


class Scratch:
    """Memory for gathered pages, reused: fresh memory would cost a page fault per 4 KiB."""

    def __init__(self, pages: torch.Tensor) -> None:
        """`pages`: a layer's, for shape, dtype and device."""
        self.page_size = pages.shape[1]
        self.device = pages.device
        self.dtype = pages.dtype
        self._memory = pages[:0].clone()

    def gather(self, pages: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """`pages[ids]`, valid until the next call."""
        if len(self._memory) < len(ids):
            self._memory = pages.new_empty((len(ids), *pages.shape[1:]))
        return torch.index_select(pages, 0, ids, out=self._memory[: len(ids)])


def additive_mask(hidden: np.ndarray, scratch: Scratch) -> torch.Tensor:
    """-inf where `hidden`, else 0, in the dtype of K/V."""
    mask = torch.zeros(hidden.shape, dtype=scratch.dtype)
    return mask.masked_fill_(torch.from_numpy(hidden), -torch.inf).to(scratch.device)


def group_similar(num_pages: Sequence[int], most: int) -> list[list[int]]:
    """Indices into `num_pages`, each in one group, longest first.

    A group's rows have similar numbers of pages, and padded to its longest it has at most `most`
    pages unless it is a single row.
    """
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(num_pages)), key=lambda i: -num_pages[i]):
        fits = groups and (len(groups[-1]) + 1) * longest <= most
        if fits and num_pages[index] >= SIMILAR * longest:
            groups[-1].append(index)
        else:
            groups.append([index])
            longest = num_pages[index]
    return groups
