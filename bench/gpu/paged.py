"""Rows of tokens on scattered pages, in the memory layout of the worker, and launches over them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from radixserve_kernels.attention_options import Options
from radixserve_kernels.attention_plan import Planner
from radixserve_kernels.paged_attention import Work, paged_attention
from radixserve_kernels.reference import dequantised
from radixserve_kernels.reference import paged_attention as twin
from radixserve_kernels.tiles import AttentionTiles, attention_tiles, chip_of

NO_PAGE = 2**31 - 1
SPARE_PAGES = 3  # that no row owns
FP8_MAX = 448.0
PART_BYTES = 512 << 20  # room for partial results, as the worker has it on a GPU
ALL = 10**7  # room for any number of partial results

Request = tuple[int, int, int]  # row, new tokens, length with them


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Heads of one layer, and how its K/V are kept."""

    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype = torch.bfloat16
    fp8: bool = False

    @property
    def token_bytes(self) -> int:
        """Of K and V of a token in one layer, with the scales."""
        size = 1 if self.fp8 else self.dtype.itemsize
        return 2 * self.kv_heads * (self.head_dim * size + 4 * self.fp8)

    @property
    def engine_parts(self) -> int:
        """Partial results that the worker has room for."""
        return PART_BYTES // (self.heads * (self.head_dim + 2) * 4)


class Rows:
    """Random K/V of rows whose first `shared` tokens are on the same pages; NaN where nobody is.

    `pages` is [num_pages, 2, Hkv, page_size, D], float numbers or fp8 codes with `scales`.
    `queries`, of all positions of each row, only if asked for.
    """

    def __init__(
        self,
        shape: Shape,
        lengths: Sequence[int],
        device: torch.device,
        *,
        shared: int = 0,
        queries: bool = False,
    ) -> None:
        """`shared`: a multiple of the page size, at most the shortest length."""
        self.shape = shape
        self.lengths = list(lengths)
        self.shared = shared
        self.device = device
        own = [-(-(length - shared) // shape.page_size) for length in lengths]
        common = shared // shape.page_size
        num_pages = common + sum(own) + SPARE_PAGES
        order = np.random.default_rng(0).permutation(num_pages).astype(np.int32)
        self.host_table = np.full((len(lengths), common + max(own) + 2), NO_PAGE, np.int32)
        ends = np.cumsum(own) + common
        for row, (end, count) in enumerate(zip(ends.tolist(), own, strict=True)):
            self.host_table[row, :common] = order[:common]
            self.host_table[row, common : common + count] = order[end - count : end]
        self.table = torch.from_numpy(self.host_table).to(device)
        self.scales: Tensor | None = None
        self.pages = self._filled(num_pages, order[num_pages - SPARE_PAGES :])
        self.queries: list[Tensor] = []
        if queries:
            sizes = [(length, shape.heads, shape.head_dim) for length in lengths]
            self.queries = [torch.randn(s, device=device).to(shape.dtype) for s in sizes]

    def _filled(self, num_pages: int, spare: np.ndarray) -> Tensor:
        shape = self.shape
        size = (num_pages, 2, shape.kv_heads, shape.page_size, shape.head_dim)
        pages = torch.empty(size, dtype=shape.dtype, device=self.device).normal_()
        pages[torch.from_numpy(spare).long().to(self.device)] = float("nan")
        for row, length in enumerate(self.lengths):
            if past := length % shape.page_size:
                pages[int(self.host_table[row, length // shape.page_size]), :, :, past:] = float(
                    "nan"
                )
        if not shape.fp8:
            return pages
        numbers = pages.float()
        self.scales = torch.exp2((numbers.abs().amax(-1) / FP8_MAX).log2().ceil())
        return (numbers / self.scales[..., None]).to(torch.float8_e4m3fn).view(torch.uint8)

    @property
    def caches(self) -> tuple[Tensor, Tensor]:
        """K and V as the kernels take them, [num_pages, page_size, Hkv, D]."""
        return self.pages[:, 0].transpose(1, 2), self.pages[:, 1].transpose(1, 2)

    @property
    def cache_scales(self) -> tuple[Tensor, Tensor] | None:
        if self.scales is None:
            return None
        return self.scales[:, 0].transpose(1, 2), self.scales[:, 1].transpose(1, 2)

    def tiles(self) -> AttentionTiles:
        """Those of `tuned.json` for the device."""
        shape = self.shape
        return attention_tiles(
            chip_of(self.device),
            shape.dtype.itemsize,
            shape.head_dim,
            shape.heads // shape.kv_heads,
            shape.page_size,
            self.pages.element_size(),
        )

    def query(self, requests: Sequence[Request]) -> Tensor:
        """The requests' new tokens, of `queries`; else random ones."""
        if self.queries:
            return torch.cat([self.queries[row][n - new : n] for row, new, n in requests])
        size = (sum(new for _, new, _ in requests), self.shape.heads, self.shape.head_dim)
        return torch.randn(size, device=self.device, dtype=self.shape.dtype)

    def launch(
        self,
        requests: Sequence[Request],
        tiles: AttentionTiles | None = None,
        max_parts: int = ALL,
        q: Tensor | None = None,
    ) -> Callable[[], Tensor]:
        """Attention of the requests as one batch; all that it reads is on the device already."""
        tiles = tiles or self.tiles()
        rows = [row for row, _, _ in requests]
        news = np.array([new for _, new, _ in requests], np.int32)
        starts = np.array([length - new for _, new, length in requests], np.int32)
        work = self._work(rows, starts, news, tiles, max_parts)
        positions = torch.from_numpy(positions_of(starts, news)).to(self.device)
        table = self.table[rows]
        q = self.query(requests) if q is None else q
        keys, values = self.caches
        options, scales = Options(self.shape.head_dim**-0.5), self.cache_scales
        return lambda: paged_attention(
            q, keys, values, table, positions, work, tiles, options, scales
        )

    def _work(
        self,
        rows: list[int],
        starts: np.ndarray,
        news: np.ndarray,
        tiles: AttentionTiles,
        max_parts: int,
    ) -> Work:
        planner = Planner(
            self.host_table[rows],
            page_size=self.shape.page_size,
            group=self.shape.heads // self.shape.kv_heads,
            tiles=tiles,
            max_parts=max_parts,
        )
        plan = planner.plan(np.arange(len(rows), dtype=np.int32), starts, news)
        tensors = {n: torch.from_numpy(a.copy()).to(self.device) for n, a in plan.arrays().items()}
        shape = (plan.num_parts, self.shape.heads, self.shape.head_dim)
        parts = torch.empty(shape, device=self.device)
        stats = torch.empty((2, *shape[:2]), device=self.device)
        return Work(**tensors, parts=parts, stats=stats, num_parts=plan.num_parts)

    def attend(
        self,
        requests: Sequence[Request],
        tiles: AttentionTiles | None = None,
        max_parts: int = ALL,
    ) -> list[Tensor]:
        """One result [new, Hq, D] per request."""
        out = self.launch(requests, tiles, max_parts)()
        return list(torch.split(out, [new for _, new, _ in requests]))

    def expected(self, requests: Sequence[Request]) -> Tensor:
        """What the twin makes of the batch, in float64."""
        keys, values = self.caches
        scales = self.cache_scales
        if scales is not None:
            keys, values = dequantised(keys, scales[0]), dequantised(values, scales[1])
        news = torch.tensor([new for _, new, _ in requests])
        starts = np.array([length - new for _, new, length in requests], np.int32)
        result: Tensor = twin(
            self.query(requests).double(),
            keys.double(),
            values.double(),
            self.table[[row for row, _, _ in requests]],
            torch.from_numpy(positions_of(starts, news.numpy())).to(self.device),
            torch.arange(len(requests)).repeat_interleave(news).to(self.device),
            Options(self.shape.head_dim**-0.5),
        )
        return result


def positions_of(starts: np.ndarray, news: np.ndarray) -> np.ndarray:
    """[T] int32: positions in their rows of the new tokens, one row after another."""
    pieces = [np.arange(s, s + n) for s, n in zip(starts.tolist(), news.tolist(), strict=True)]
    return np.concatenate(pieces).astype(np.int32)


def block_m(tiles: AttentionTiles, size: int) -> AttentionTiles:
    """All forms with so many lanes, the larger ones with eight warps."""
    warps = 8 if size >= 128 else 4
    narrow, wide, tile = (
        replace(form, block_m=size, num_warps=warps)
        for form in (tiles.narrow, tiles.wide, tiles.tile)
    )
    return replace(tiles, narrow=narrow, wide=wide, tile=tile)
