"""Rows of tokens in a poisoned pool of pages [N, 2, Hkv, page_size, D], to attend to at will."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch

from radixserve_kernels import cpu, reference
from radixserve_kernels.attention_options import Options
from radixserve_kernels.cpu import AttentionPlan, Shape

NO_PAGE = 2**31 - 1


@dataclass
class PagePool:
    """Positions past a row's end, and pages no row owns, are NaN; ids past a row's pages are huge.

    Row r has the queries of all its positions, and stands in slot r of the table.
    """

    queries: list[torch.Tensor]  # one [length, Hq, D] per row
    pages: torch.Tensor
    table: np.ndarray

    @property
    def page_size(self):
        return self.pages.shape[3]

    def lengths(self):
        return [len(q) for q in self.queries]

    def attend(self, requests, options=None, **more):
        """The op on rows [(row, new tokens, length), ...] as one batch; one output per request."""
        options = options or Options(self.pages.shape[4] ** -0.5)
        plan = self.plan(requests, options.window, **more)
        out = cpu.paged_attention(self.step_queries(requests), self.pages, plan, options)
        return out.split([new for _, new, _ in requests])

    def plan(self, requests, window=0, **more):
        rows, news, lengths = (np.array(x, np.int64) for x in zip(*requests, strict=True))
        start = np.concatenate(([0], np.cumsum(news)))
        shape = Shape.of(self.pages, self.queries[0].shape[1])
        return AttentionPlan(rows, start, lengths, self.table, shape, window=window, **more)

    def step_queries(self, requests):
        return torch.cat([self.queries[row][end - new : end] for row, new, end in requests])

    def expected(self, requests, options=None):
        """What the twin makes of it in float64."""
        options = options or Options(self.pages.shape[4] ** -0.5)
        positions = [torch.arange(end - new, end) for _, new, end in requests]
        news = [new for _, new, _ in requests]
        caches = (self.pages[:, half].transpose(1, 2).double() for half in (0, 1))
        table = torch.from_numpy(self.table)[[row for row, *_ in requests]]
        return reference.paged_attention(
            self.step_queries(requests).double(), *caches, table, torch.cat(positions),
            torch.arange(len(news)).repeat_interleave(torch.tensor(news)), options,
        ).split(news)  # fmt: skip

    def share(self, row, other, pages):
        """`other` begins with the first pages of `row`, as far as both have them whole."""
        most = min(self.lengths()[row], self.lengths()[other]) // self.page_size
        pages = min(pages, most)
        self.table[other, :pages] = self.table[row, :pages]

    def apart(self):
        """The same rows, each with pages of its own."""
        counts = [-(-length // self.page_size) for length in self.lengths()]
        table = np.full_like(self.table, NO_PAGE)
        pages = self.pages.new_full((sum(counts) + 1, *self.pages.shape[1:]), float("nan"))
        ids = itertools.count(1)
        for row, count in enumerate(counts):
            for i in range(count):
                table[row, i] = next(ids)
                pages[table[row, i]] = self.pages[self.table[row, i]]
        return replace(self, pages=pages, table=table)

    def place(self, row, position):
        """Page and offset of a token."""
        page, offset = divmod(position, self.page_size)
        return int(self.table[row, page]), offset


def page_pool(lengths, heads, size, page_size, dtype=torch.float32, seed=0):
    """Random rows of these lengths; `heads` is (query heads, K/V heads). Pages are shuffled.

    A row's values depend on the seed, on how many rows there are before it and on their sizes.
    """
    generator = torch.Generator().manual_seed(seed)
    q_heads, kv_heads = heads
    counts = [-(-length // page_size) for length in lengths]
    order = np.random.default_rng(seed).permutation(sum(counts) + 3).tolist()
    table = np.full((len(lengths), max(counts) + 2), NO_PAGE, np.int32)
    pages = torch.full((sum(counts) + 3, 2, kv_heads, page_size, size), float("nan"), dtype=dtype)
    queries = []
    for row, length in enumerate(lengths):
        for i in range(counts[row]):
            page, filled = order.pop(), min(page_size, length - i * page_size)
            table[row, i] = page
            values = torch.randn(2, kv_heads, filled, size, generator=generator)
            pages[page, :, :, :filled] = values.to(dtype)
        queries.append(torch.randn(length, q_heads, size, generator=generator))
    return PagePool(queries, pages, table)
