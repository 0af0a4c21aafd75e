"""Attention over pages by batched torch operators: the real backend on a CPU.

Rows with one new token are padded into groups of similar length; a row with several is computed
alone. The query heads that share a K/V head become more queries of one head, so K and V are never
expanded. Indices and masks are made once per step; per layer a group costs one gather of its pages
and one `scaled_dot_product_attention`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from radixserve.models.rotary import rotate
from radixserve.worker.attention.backend import Attend, Setting
from radixserve.worker.batch import Batch, HostBatch, Repeats
from radixserve.worker.kv_cache import KVCache

GROUP_BYTES = 2 << 20  # most K/V gathered at once for several rows, per thread: stays in its cache
BLOCK_TOKENS = 256  # new tokens of a row computed at once behind a cached prefix
SIMILAR = 0.75  # a group's rows have at least this share of the pages of its longest row


class TorchPaged:
    """The `Attention` made of torch operators."""

    operators: ClassVar[str] = "torch"
    deterministic_operators: ClassVar[str] = ""
    sampler: ClassVar[str] = "torch"
    kv_cache_dtypes: ClassVar[tuple[str, ...]] = ("auto",)

    def __init__(self, setting: Setting) -> None:
        self._cache = setting.cache
        self._scale = setting.scale
        self._scratch = Scratch(setting.cache.pages[0])

    def forget(self, slot: int) -> None:
        """Nothing is remembered."""

    def plan(self, host: HostBatch) -> "TorchPlan":
        return TorchPlan(self, host)

    def fixed_shapes(self, num_tokens: int) -> None:
        return None

    def bind_fixed(self, batch: Batch, tensors: Mapping[str, torch.Tensor]) -> Attend:
        raise AssertionError("the torch backend has no fixed shapes to bind")

    def _decode(self, rows: np.ndarray, host: HostBatch) -> "list[Part]":
        return [DecodeRows(rows, host, self._scratch, self._scale)] if len(rows) else []

    def attend(self, host: HostBatch, batch: Batch, repeats: Repeats | None) -> Attend:
        """What `TorchPlan.bind` gives."""
        new = np.diff(host.row_start)
        long = {
            row: ExtendRow(row, host, self._scratch, self._scale)
            for row in np.flatnonzero(new > 1).tolist()
        }
        parts: list[Part] = [*long.values(), *self._decode(np.flatnonzero(new == 1), host)]
        # behind the last layer only the last tokens of sampled rows, and scored rows are looked at
        scored = host.scored_rows
        last: list[Part] = [long[row] for row in scored.tolist() if row in long]
        last += self._decode(np.union1d(host.sampled, scored[new[scored] == 1]), host)
        last_layer = len(self._cache.pages) - 1
        writer = KVWriter(host, batch, self._cache)

        def attend(
            layer: int, qk: torch.Tensor, v: torch.Tensor, turn: torch.Tensor
        ) -> torch.Tensor:
            pages = self._cache.pages[layer]
            qk = rotate(qk, turn)
            q, k = qk[:, : -v.shape[1]], qk[:, -v.shape[1] :]
            writer.write(pages, k, v)
            if repeats is not None:
                k, v = (x.index_select(0, repeats.tokens) for x in (k, v))
                self._cache.put(layer, repeats.places, k, v)
            out = torch.empty_like(q)
            for part in parts if layer < last_layer else last:
                part.attend(pages, q, out)
            return out

        return attend


class TorchPlan:
    """Everything of a step is planned when it is bound: its masks and indices are tensors."""

    def __init__(self, attention: TorchPaged, host: HostBatch) -> None:
        self._attention = attention
        self._host = host

    def bind(self, batch: Batch, repeats: Repeats | None = None) -> Attend:
        return self._attention.attend(self._host, batch, repeats)

    def fixed(self, num_tokens: int) -> None:
        return None


class KVWriter:
    """Writes the K/V of a step's tokens to their places, which are the same in all layers.

    Whole pages whose ids follow each other are written as one block, all other tokens one by one.
    """

    def __init__(self, host: HostBatch, batch: Batch, cache: KVCache) -> None:
        self._blocks: list[tuple[slice, slice]] = []  # (tokens of the step, pages)
        single = np.ones(host.row_start[-1], dtype=bool)
        for row in np.flatnonzero(np.diff(host.row_start) > cache.page_size).tolist():
            self._add_block(row, host, cache.page_size, single)
        self._single: torch.Tensor | None = None
        slots = batch.write_slots
        if self._blocks:
            self._single = torch.from_numpy(np.flatnonzero(single)).to(batch.write_slots.device)
            slots = slots[self._single]
        self._vectors = cache.vectors(slots)

    def _add_block(self, row: int, host: HostBatch, page_size: int, single: np.ndarray) -> None:
        """Note the row's whole pages as a block, if their ids follow each other."""
        begin, end = host.row_start[row : row + 2].tolist()
        start = int(host.kv_len[row]) - (end - begin)
        begin += -start % page_size
        count = (end - begin) // page_size
        first = -(-start // page_size)
        ids = host.page_table[host.row_slot[row], first : first + count]
        if count > 1 and (np.diff(ids) == 1).all():
            tokens = slice(begin, begin + count * page_size)
            self._blocks.append((tokens, slice(int(ids[0]), int(ids[-1]) + 1)))
            single[tokens] = False

    def write(self, pages: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """k, v [T, Hkv, D] into a layer's pages."""
        _, _, num_kv_heads, page_size, head_dim = pages.shape
        for tokens, block in self._blocks:
            for half, x in enumerate((k, v)):
                whole = x[tokens].view(-1, page_size, num_kv_heads, head_dim)
                pages[block, half].copy_(whole.transpose(1, 2))
        if self._single is not None:
            k, v = k[self._single], v[self._single]
        pages.view(-1, head_dim).index_copy_(
            0, self._vectors, torch.cat((k, v), 1).view(-1, head_dim)
        )


class Part(Protocol):
    """Some rows of a step that are computed together."""

    def attend(self, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> None:
        """Fill the rows' part of `out` [T, Hq, D] from q [T, Hq, D] and the layer's pages."""


class DecodeRows:
    """The last tokens of rows, in groups of rows of similar length padded to the longest."""

    def __init__(self, rows: np.ndarray, host: HostBatch, scratch: "Scratch", scale: float) -> None:
        num_pages = -(-host.kv_len[rows] // scratch.page_size)
        most = GROUP_BYTES * torch.get_num_threads() // scratch.page_bytes
        groups = [rows[group] for group in group_similar(num_pages.tolist(), most)]
        tokens = host.row_start[np.concatenate(groups) + 1] - 1
        self._tokens = torch.from_numpy(tokens).to(scratch.device)
        self._sizes = [len(group) for group in groups]
        self._readers = [KVReader(group, host, scratch) for group in groups]
        self._masks = [_padding_mask(host.kv_len[group], scratch) for group in groups]
        self._scale = scale

    def attend(self, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> None:
        num_kv_heads, head_dim = pages.shape[2], pages.shape[4]
        query = q.index_select(0, self._tokens).view(len(self._tokens), num_kv_heads, -1, head_dim)
        found = []
        groups = torch.split(query, self._sizes)
        for rows, reader, mask in zip(groups, self._readers, self._masks, strict=True):
            key, value = reader.read(pages)  # [rows, Hkv, longest, D]
            found.append(  # rows: [rows, Hkv, G, D]
                scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=self._scale)
            )
        out.index_copy_(0, self._tokens, torch.cat(found).view(-1, *q.shape[1:]))


class ExtendRow:
    """A row with several new tokens, in blocks of tokens that leave out what is after them.

    Behind a cached prefix the G query heads of a K/V head are queries of one head, G times as many:
    its K/V is read once for all. From position 0 on the operator knows the mask, but only if heads
    are apart; they share K/V by a stride of 0.
    """

    def __init__(self, row: int, host: HostBatch, scratch: "Scratch", scale: float) -> None:
        begin, end = host.row_start[row : row + 2].tolist()
        self._length = int(host.kv_len[row])
        self._cached = self._length - (end - begin)
        self._tokens = slice(begin, end)
        self._reader = KVReader(np.array([row]), host, scratch)
        self._scratch = scratch
        self._scale = scale
        self._blocks: list[tuple[int, int, torch.Tensor]] = []  # first position, last + 1, mask

    def attend(self, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> None:
        key, value = (x.transpose(0, 1) for x in self._reader.read(pages))  # [Hkv, 1, length, D]
        grouped = torch.unflatten(q[self._tokens], 1, (pages.shape[2], -1))
        query = grouped.permute(1, 2, 0, 3)  # [Hkv, G, new, D]
        row_out = out[self._tokens].view_as(grouped)
        if not self._cached:
            shared = (*query.shape[:2], self._length, -1)
            found = scaled_dot_product_attention(
                query, key.expand(shared), value.expand(shared), is_causal=True, scale=self._scale
            )
            row_out.copy_(found.permute(2, 0, 1, 3))
            return
        self._blocks = self._blocks or self._make_blocks(query.shape[1])
        for first, stop, mask in self._blocks:
            new = slice(first - self._cached, stop - self._cached)
            block = query[:, :, new]
            found = scaled_dot_product_attention(
                block.flatten(1, 2)[:, None],  # [Hkv, 1, G * new, D]
                key[:, :, :stop],
                value[:, :, :stop],
                attn_mask=mask,
                scale=self._scale,
            )
            row_out[new] = found.view(block.shape).permute(2, 0, 1, 3)

    def _make_blocks(self, group: int) -> list[tuple[int, int, torch.Tensor]]:
        bounds = [*range(self._cached, self._length, BLOCK_TOKENS), self._length]
        return [
            (
                first,
                stop,
                _additive_mask(
                    np.arange(stop) > np.arange(first, stop)[:, None], self._scratch
                ).repeat(group, 1),
            )
            for first, stop in pairwise(bounds)
        ]


class KVReader:
    """Reads the K/V of some rows, whose places are the same in all layers."""

    def __init__(self, rows: np.ndarray, host: HostBatch, scratch: "Scratch") -> None:
        self._scratch = scratch
        lengths = host.kv_len[rows]
        self._longest = int(lengths.max())
        columns = -(-self._longest // scratch.page_size)
        kv_heads = np.arange(2 * scratch.num_kv_heads)[:, None]
        pages = host.page_table[host.row_slot[rows], :columns].astype(np.int64)
        pieces = pages[:, None] * len(kv_heads) + kv_heads
        self._shape = (len(lengths), 2, scratch.num_kv_heads, columns * scratch.page_size, -1)
        self._pieces = torch.from_numpy(pieces.ravel()).to(scratch.device)
        past = np.arange(columns * scratch.page_size) >= lengths[:, None]
        past[:, self._longest :] = False  # cut off anyway
        past = np.repeat(past, len(kv_heads), axis=0)  # [rows * 2 * Hkv, tokens]
        self._past = torch.from_numpy(np.flatnonzero(past)).to(scratch.device)

    def read(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a layer, each [rows, Hkv, longest, D]; valid until the next read.

        Zero past a row's end: what a page holds there may be NaN, which no mask takes away.
        """
        found = self._scratch.gather(pages, self._pieces)
        if len(self._past):
            found.view(-1, pages.shape[-1]).index_fill_(0, self._past, 0)
        kv = found.view(self._shape)[:, :, :, : self._longest]
        return kv[:, 0], kv[:, 1]


class Scratch:
    """Memory for gathered K/V, reused: fresh memory would cost a page fault per 4 KiB."""

    def __init__(self, pages: torch.Tensor) -> None:
        """`pages`: a layer's, for shape, dtype and device."""
        _, _, self.num_kv_heads, self.page_size, head_dim = pages.shape
        self.device = pages.device
        self.dtype = pages.dtype
        self.page_bytes = pages[0].nbytes
        self._memory = pages.new_empty(0, self.page_size * head_dim)

    def gather(self, pages: torch.Tensor, pieces: torch.Tensor) -> torch.Tensor:
        """Pieces of a layer's pages, each the page_size * D numbers of one head's K or V.

        [len(pieces), page_size * D], valid until the next call.
        """
        source = pages.view(-1, self._memory.shape[1])
        if len(self._memory) < len(pieces):
            self._memory = source.new_empty(len(pieces), source.shape[1])
        return torch.index_select(source, 0, pieces, out=self._memory[: len(pieces)])


def _padding_mask(lengths: np.ndarray, scratch: Scratch) -> torch.Tensor | None:
    """[rows, 1, 1, longest] that hides what lies past each row's end, if anything does."""
    past = np.arange(lengths.max()) >= lengths[:, None]
    return _additive_mask(past, scratch)[:, None, None] if past.any() else None


def _additive_mask(hidden: np.ndarray, scratch: Scratch) -> torch.Tensor:
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
