"""Rows of tokens in a poisoned K/V pool, to run an op on any of them, split and mixed at will."""

import math
import mmap
from dataclasses import dataclass

import torch

# Largest error of a (token, head) vector, relative to its length, against float64.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
NO_PAGE = 2**31 - 1


@dataclass
class PagedRows:
    """The queries of all positions of each row, and the pool that holds their K/V.

    Positions past a row's end and pages no row owns are NaN; table entries past the end are huge.
    """

    queries: list[torch.Tensor]  # one [length, Hq, D] per row
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    page_table: torch.Tensor

    def attend(self, op, requests, *, max_new=0):
        """`op` on rows [(row, new tokens, length), ...] as one batch; one output per request."""
        q = torch.cat([self.queries[row][length - new : length] for row, new, length in requests])
        return op(
            q, self.k_cache, self.v_cache, *self.tables(requests),
            scale=q.shape[2] ** -0.5, max_new=max_new or max(new for _, new, _ in requests),
        ).split([new for _, new, _ in requests])  # fmt: skip

    def tables(self, requests):
        """page_table, row_start and kv_len of a batch of requests."""
        device = self.page_table.device
        news = torch.tensor([0] + [new for _, new, _ in requests])
        row_start = news.cumsum(0).to(device, torch.int32)
        kv_len = torch.tensor([length for *_, length in requests], dtype=torch.int32).to(device)
        return self.page_table[[row for row, *_ in requests]], row_start, kv_len

    def doubled(self):
        """The same rows in float64, for the reference."""
        queries = [q.double() for q in self.queries]
        return PagedRows(queries, self.k_cache.double(), self.v_cache.double(), self.page_table)


def paged_rows(lengths, heads, head_size, page_size, dtype, device, seed=0):
    """Random rows of these lengths; `heads` is (query heads, K/V heads). Pages are shuffled.

    The rows' values depend on the seed, lengths and head sizes alone.
    """
    generator = torch.Generator().manual_seed(seed)
    shuffle = torch.Generator().manual_seed(seed)
    q_heads, kv_heads = heads
    counts = [-(-length // page_size) for length in lengths]
    num_pages = sum(counts) + 3
    order = torch.randperm(num_pages, generator=shuffle).tolist()
    table = torch.full((len(lengths), max(counts) + 2), NO_PAGE, dtype=torch.int32)
    shape = (num_pages, page_size, kv_heads, head_size)
    caches = [torch.full(shape, float("nan"), dtype=dtype) for _ in "kv"]
    queries = []
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        pages = [order.pop() for _ in range(count)]
        table[row, :count] = torch.tensor(pages)
        where = torch.tensor([pages[t // page_size] * page_size + t % page_size
                              for t in range(length)])  # fmt: skip
        for cache in caches:
            values = torch.randn(length, kv_heads, head_size, generator=generator)
            cache.view(-1, kv_heads, head_size)[where] = values.to(dtype)
        queries.append(torch.randn(length, q_heads, head_size, generator=generator).to(dtype))
    k_cache, v_cache = (cache.to(device) for cache in caches)
    return PagedRows([q.to(device) for q in queries], k_cache, v_cache, table.to(device))


def fp8_caches(num_pages, page_size, kv_heads, head_size, device):
    """K and V caches of codes, and their scales as a worker has them: one allocation, heads first.

    The codes are marked by 0x55, the scales by NaN.
    """
    shape = (num_pages, page_size, kv_heads, head_size)
    caches = [torch.full(shape, 0x55, dtype=torch.uint8, device=device) for _ in "kv"]
    scales = torch.full((num_pages, 2, kv_heads, page_size), float("nan"), device=device)
    return *caches, tuple(scales.transpose(2, 3).unbind(1))


def caches_with_far_page(page_shape, dtype, device):
    """K and V caches of one page, with a page more than 2**31 elements further in their memory.

    Returns the caches, the far pages and their page id. On a CPU the memory between is never
    touched, so it is never there.
    """
    size = math.prod(page_shape)
    page_id = 2**31 // size + 1
    caches, far_pages = [], []
    for _ in "kv":
        length = (page_id + 1) * size
        if device.type == "cuda":
            memory = torch.zeros(length, dtype=dtype, device=device)
            near, far = memory[:size], memory[-size:]
        else:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            memory = mmap.mmap(-1, length * dtype.itemsize, flags=flags)
            near = torch.frombuffer(memory, dtype=dtype, count=size)
            start = (length - size) * dtype.itemsize
            far = torch.frombuffer(memory, dtype=dtype, count=size, offset=start)
        caches.append(near.view(1, *page_shape))
        far_pages.append(far.view(page_shape))
    return caches, far_pages, page_id


def worst_error(outputs, expected):
    """Largest error of a (token, head) vector, relative to its length; NaN counts as infinite."""
    errors = [
        ((out.double() - want).norm(dim=-1) / want.norm(dim=-1)).max()
        for out, want in zip(outputs, expected, strict=True)
    ]
    return torch.stack(errors).nan_to_num(nan=torch.inf).max().item()
