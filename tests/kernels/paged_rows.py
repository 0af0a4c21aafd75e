"""Rows of tokens in a poisoned K/V pool, to run an op on any of them, split and mixed at will."""

import math
import mmap
from dataclasses import dataclass, replace

import numpy as np
import torch

from radixserve_kernels import reference
from radixserve_kernels.attention_options import Options
from radixserve_kernels.attention_plan import Planner
from radixserve_kernels.paged_attention import Work, paged_attention
from radixserve_kernels.tiles import attention_tiles, chip_of

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
    scales: tuple[torch.Tensor, torch.Tensor] | None = None  # of an fp8 cache

    def attend(self, requests, *, tiles=None, options=None, max_parts=10**6):
        """The op on rows [(row, new tokens, length), ...] as one batch; one output per request."""
        step = self.step(requests)
        options = options or Options(step.q.shape[2] ** -0.5)
        tiles = tiles or self.tiles()
        work = self.work(requests, tiles, max_parts)
        return paged_attention(
            step.q, self.k_cache, self.v_cache, step.table, step.positions, work, tiles, options,
            self.scales,
        ).split(step.news)  # fmt: skip

    def expected(self, requests, *, options=None):
        """What the twin makes of it in float64."""
        step = self.step(requests)
        options = options or Options(step.q.shape[2] ** -0.5)
        caches = [self.k_cache, self.v_cache]
        if self.scales is None:
            caches = [cache.double() for cache in caches]
        return reference.paged_attention(
            step.q.double(), *caches, step.table, step.positions, step.token_slot, options,
            self.scales,
        ).split(step.news)  # fmt: skip

    def share(self, row, other, pages):
        """`other` begins with the first pages of `row`, as far as they are within both."""
        self.page_table[other, :pages] = self.page_table[row, :pages]

    def quantised(self):
        """The same rows in an fp8 cache, in which what no row owns is NaN."""
        caches, scales = [], []
        for cache in (self.k_cache, self.v_cache):
            scale = torch.exp2((cache.float().abs().amax(-1) / 448).log2().ceil())
            caches.append((cache.float() / scale[..., None]).to(torch.float8_e4m3fn))
            scales.append(scale)
        k_cache, v_cache = (cache.view(torch.uint8) for cache in caches)
        return replace(self, k_cache=k_cache, v_cache=v_cache, scales=tuple(scales))

    def step(self, requests):
        """The tensors of a batch of requests; the i-th has slot i."""
        device = self.page_table.device
        news = [new for _, new, _ in requests]
        starts = [length - new for _, new, length in requests]
        positions = [
            torch.arange(start, start + new) for start, new in zip(starts, news, strict=True)
        ]
        return Step(
            q=torch.cat(
                [self.queries[row][length - new : length] for row, new, length in requests]
            ),
            table=self.page_table[[row for row, *_ in requests]],
            positions=torch.cat(positions).to(device, torch.int32),
            token_slot=torch.arange(len(news)).repeat_interleave(torch.tensor(news)).to(device),
            news=news,
            starts=starts,
        )

    def tiles(self):
        _, page_size, kv_heads, head_size = self.k_cache.shape
        q = self.queries[0]
        return attention_tiles(
            chip_of(q.device), q.element_size(), head_size, q.shape[1] // kv_heads, page_size,
            self.k_cache.element_size(),
        )  # fmt: skip

    def work(self, requests, tiles, max_parts=10**6, more=0):
        """The plan of a batch by a new planner, on the device."""
        step = self.step(requests)
        planner = Planner(
            step.table.cpu().numpy(),
            page_size=self.k_cache.shape[1],
            group=self.queries[0].shape[1] // self.k_cache.shape[2],
            tiles=tiles,
            max_parts=max_parts,
        )
        plan = planner.plan(*(
            np.array(x, np.int32) for x in (range(len(requests)), step.starts, step.news)
        ))  # fmt: skip
        return work_of(plan, step.q, more)


def work_of(plan, q, more=0):
    """The plan on q's device, with room for partial results, `more` than there are."""
    tensors = {name: torch.from_numpy(a).to(q.device) for name, a in plan.arrays().items()}
    room = plan.num_parts + more
    parts = torch.empty((room, *q.shape[1:]), device=q.device)
    stats = torch.empty((2, room, q.shape[1]), device=q.device)
    return Work(**tensors, parts=parts, stats=stats, num_parts=plan.num_parts)


@dataclass
class Step:
    q: torch.Tensor
    table: torch.Tensor
    positions: torch.Tensor
    token_slot: torch.Tensor
    news: list[int]
    starts: list[int]


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
