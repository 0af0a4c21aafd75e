"""Attention over pages by batched torch operators: on a CPU without kernels of its own.

Rows with one new token are padded into groups of similar length; a row with several is computed
alone. The query heads that share a K/V head become more queries of one head, so K and V are never
expanded. Indices and masks are made once per step and window; per layer a group costs one gather of
its pages and one `scaled_dot_product_attention`. Pages before a layer's window are not read.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from radixserve.models.model import Attend
from radixserve.models.rotary import rotate
from radixserve.worker.attention.backend import Setting
from radixserve.worker.batch import Batch, HostBatch, Repeats
from radixserve.worker.kv_cache import KVCache
from radixserve_kernels.attention_options import Options

GROUP_BYTES = 2 << 20  # most K/V gathered at once for several rows, per thread: stays in its cache
BLOCK_TOKENS = 256  # new tokens of a row computed at once behind a cached prefix
SIMILAR = 0.75  # a group's rows have at least this share of the pages of its longest row


class TorchPaged:
    """The `Attention` made of torch operators."""

    operators: ClassVar[str] = "torch"
    deterministic_operators: ClassVar[str] = ""
    sampler: ClassVar[str] = "torch"
    kv_cache_dtypes: ClassVar[tuple[str, ...]] = ("auto",)

    @staticmethod
    def use_threads(count: int) -> None:
        torch.set_num_threads(count)

    def __init__(self, setting: Setting) -> None:
        self._cache = setting.cache
        self._options = setting.options
        self._scratch = Scratch(setting.cache.pages[0])

    def forget(self, slot: int) -> None:
        """Nothing is remembered."""

    def plan(self, host: HostBatch) -> "TorchPlan":
        return TorchPlan(self, host)

    def fixed_shapes(self, num_tokens: int) -> None:
        return None

    def bind_fixed(self, batch: Batch, tensors: Mapping[str, torch.Tensor]) -> Attend:
        raise AssertionError("the torch backend has no fixed shapes to bind")

    def attend(self, host: HostBatch, batch: Batch, repeats: Repeats | None) -> Attend:
        """What `TorchPlan.bind` gives."""
        longest = host.kv_len.max()
        windows = [o.window if o.window < longest else 0 for o in self._options]
        last_layer = len(windows) - 1
        parts = {window: self._parts(host, window) for window in set(windows[:last_layer])}
        last = self._last_parts(host, windows[last_layer])
        writer = KVWriter(host, batch, self._cache)

        def attend(
            layer: int, qk: torch.Tensor, v: torch.Tensor, turn: torch.Tensor | None
        ) -> torch.Tensor:
            pages, options = self._cache.pages[layer], self._options[layer]
            if turn is not None:
                qk = rotate(qk, turn)
            q, k = qk[:, : -v.shape[1]], qk[:, -v.shape[1] :]
            writer.write(pages, k, v)
            if repeats is not None:
                k, v = (x.index_select(0, repeats.tokens) for x in (k, v))
                self._cache.put(layer, repeats.places, k, v)
            out = q.new_zeros(q.shape)
            for part in last if layer == last_layer else parts[windows[layer]]:
                part.attend(pages, q, out, options)
            return out

        return attend

    def _parts(self, host: HostBatch, window: int) -> list["Part"]:
        """All rows of a step, for layers with this window."""
        new = np.diff(host.row_start)
        long, short = np.flatnonzero(new > 1), np.flatnonzero(new == 1)
        return self._parts_of(host, window, long, short)

    def _last_parts(self, host: HostBatch, window: int) -> list["Part"]:
        """Behind the last layer only sampled rows' last tokens and scored rows are looked at."""
        new, scored = np.diff(host.row_start), host.scored_rows
        short = np.union1d(host.sampled, scored[new[scored] == 1])
        return self._parts_of(host, window, scored[new[scored] > 1], short)

    def _parts_of(
        self, host: HostBatch, window: int, long: np.ndarray, short: np.ndarray
    ) -> list["Part"]:
        """All tokens of the rows `long`, then the last ones of the rows `short`."""
        parts: list[Part] = [ExtendRow(row, host, self._scratch, window) for row in long.tolist()]
        if len(short):
            parts.append(DecodeRows(short, host, self._scratch, window))
        return parts


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
    """Some rows of a step that are computed together, in all layers with the same window."""

    def attend(
        self, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor, options: Options
    ) -> None:
        """Fill the rows' part of `out` [T, Hq, D] from q [T, Hq, D] and the layer's pages."""


class DecodeRows:
    """The last tokens of rows, in groups of rows of similar length padded to the longest."""

    def __init__(self, rows: np.ndarray, host: HostBatch, scratch: "Scratch", window: int) -> None:
        skipped = _pages_before(host.kv_len[rows] - 1, window, scratch.page_size)
        num_pages = -(-host.kv_len[rows] // scratch.page_size) - skipped
        most = GROUP_BYTES * torch.get_num_threads() // scratch.page_bytes
        groups = group_similar(num_pages.tolist(), most)
        tokens = host.row_start[rows[np.concatenate(groups)] + 1] - 1
        self._tokens = torch.from_numpy(tokens).to(scratch.device)
        self._sizes = [len(group) for group in groups]
        self._readers = [KVReader(rows[group], host, scratch, skipped[group]) for group in groups]
        self._masks = [reader.last_token_mask(window) for reader in self._readers]

    def attend(
        self, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor, options: Options
    ) -> None:
        num_kv_heads, head_dim = pages.shape[2], pages.shape[4]
        query = q.index_select(0, self._tokens).view(len(self._tokens), num_kv_heads, -1, head_dim)
        found = []
        groups = torch.split(query, self._sizes)
        for rows, reader, mask in zip(groups, self._readers, self._masks, strict=True):
            key, value = reader.read(pages)  # [rows, Hkv, longest, D]
            found.append(_attention(rows, key, value, mask, options))  # rows: [rows, Hkv, G, D]
        out.index_copy_(0, self._tokens, torch.cat(found).view(-1, *q.shape[1:]))


class ExtendRow:
    """A row with several new tokens, in blocks of tokens that leave out what is after them.

    Behind a cached prefix the G query heads of a K/V head are queries of one head, G times as many:
    its K/V is read once for all. From position 0 on the operator knows the mask, unless something
    lies before the window, but only if heads are apart; they share K/V by a stride of 0.
    """

    def __init__(self, row: int, host: HostBatch, scratch: "Scratch", window: int) -> None:
        begin, end = host.row_start[row : row + 2].tolist()
        self._length = int(host.kv_len[row])
        self._cached = self._length - (end - begin)
        self._window = window if window < self._length else 0
        self._tokens = slice(begin, end)
        skipped = _pages_before(np.array([self._cached]), self._window, scratch.page_size)
        self._first = int(skipped[0]) * scratch.page_size  # position that is read first
        self._reader = KVReader(np.array([row]), host, scratch, skipped)
        self._scratch = scratch
        self._blocks: list[tuple[slice, slice, torch.Tensor]] = []  # new tokens, K/V read, mask

    def attend(
        self, pages: torch.Tensor, q: torch.Tensor, out: torch.Tensor, options: Options
    ) -> None:
        key, value = (x.transpose(0, 1) for x in self._reader.read(pages))  # [Hkv, 1, read, D]
        grouped = torch.unflatten(q[self._tokens], 1, (pages.shape[2], -1))
        query = grouped.permute(1, 2, 0, 3)  # [Hkv, G, new, D]
        row_out = out[self._tokens].view_as(grouped)
        if not (self._cached or self._window or options.softcap):
            shared = (*query.shape[:2], self._length, -1)
            found = scaled_dot_product_attention(
                query,
                key.expand(shared),
                value.expand(shared),
                is_causal=True,
                scale=options.scale,
            )
            row_out.copy_(found.permute(2, 0, 1, 3))
            return
        self._blocks = self._blocks or self._make_blocks(query.shape[1])
        for new, seen, mask in self._blocks:
            block = query[:, :, new]
            rows = block.flatten(1, 2)[:, None]  # [Hkv, 1, G * new, D]
            found = _attention(rows, key[:, :, seen], value[:, :, seen], mask, options)
            row_out[new] = found.view(block.shape).permute(2, 0, 1, 3)

    def _make_blocks(self, group: int) -> list[tuple[slice, slice, torch.Tensor]]:
        blocks = []
        bounds = [*range(self._cached, self._length, BLOCK_TOKENS), self._length]
        for first, stop in pairwise(bounds):
            start = max(first + 1 - self._window, 0) if self._window else 0
            seen, new = np.arange(start, stop), np.arange(first, stop)[:, None]
            hidden = seen > new
            if self._window:
                hidden |= seen <= new - self._window
            mask = _additive_mask(hidden, self._scratch).repeat(group, 1)
            tokens = slice(first - self._cached, stop - self._cached)
            blocks.append((tokens, slice(start - self._first, stop - self._first), mask))
        return blocks


class KVReader:
    """Reads the K/V of some rows, whose places are the same in all layers with the same window."""

    def __init__(
        self, rows: np.ndarray, host: HostBatch, scratch: "Scratch", skipped: np.ndarray
    ) -> None:
        """`skipped` [rows]: pages at each row's beginning that are not read."""
        self._scratch = scratch
        self._lengths = lengths = host.kv_len[rows] - skipped * scratch.page_size
        self._longest = int(lengths.max())
        columns = -(-self._longest // scratch.page_size)
        kv_heads = np.arange(2 * scratch.num_kv_heads)[:, None]
        index = np.minimum(skipped[:, None] + np.arange(columns), host.page_table.shape[1] - 1)
        pages = host.page_table[host.row_slot[rows][:, None], index].astype(np.int64)
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

    def last_token_mask(self, window: int) -> torch.Tensor | None:
        """[rows, 1, 1, longest] for each row's last token, if anything is to be hidden.

        That is what lies past the row's end or before its window.
        """
        place, lengths = np.arange(self._longest), self._lengths[:, None]
        hidden = place >= lengths
        if window:
            hidden |= place < lengths - window
        return _additive_mask(hidden, self._scratch)[:, None, None] if hidden.any() else None


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


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    options: Options,
) -> torch.Tensor:
    """query [..., N, D] on key and value [..., M, D], with an additive mask [..., N, M]."""
    if not options.softcap:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=options.scale)
    scores = query @ key.transpose(-2, -1)
    scores = scores.float().mul_(options.scale / options.softcap).tanh_().mul_(options.softcap)
    if mask is not None:
        scores += mask
    return torch.softmax(scores, -1).to(value.dtype) @ value


def _pages_before(position: np.ndarray, window: int, page_size: int) -> np.ndarray:
    """[rows], whole pages before the window of the tokens at `position` [rows]. 0: no window."""
    if not window:
        return np.zeros_like(position)
    pages: np.ndarray = np.maximum(position + 1 - window, 0) // page_size
    return pages


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
