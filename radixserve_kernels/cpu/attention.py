"""Paged attention in C for any number of new tokens a row; its twin is `reference.paged_attention`.

A plan is made once a step (and window) and used by all layers. It finds the chunks of K/V that
several rows share: each is read once for all of them. Chunks lie at absolute positions and their
results are merged in order, so a token's bits depend on its query and on the K/V that it sees:
not on the batch, on how its row was cut into steps, on shared pages or on threads.
"""

import ctypes
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
import torch

from radixserve_kernels.attention_options import Options
from radixserve_kernels.cpu.library import kernels

CHUNK = 64  # as src/attention.h has it, like the next two
MOST_QUERIES = 96
MOST_SIZE = 256
SPLIT_QUERIES = 32  # rows with at most as many queries a K/V head share chunks, or are split
LEAST_TILE = 8  # new tokens of a longer row that are computed together, if threads are many
KV_DTYPES = (torch.float32, torch.float16)
WRONG = (  # with a step, by the number that src/attention_plan.c gives it
    "",
    "row_start must rise from 0, by at most kv_len in a row",
    "row_slot must name rows of the page table",
    "a row has no room in the page table for its tokens",
    "a row needs a page that is none of those there are",
)


@dataclass(frozen=True)
class Shape:
    """A layer's pages, [num_pages, 2, num_kv_heads, page_size, head_size], and query heads."""

    num_pages: int
    num_heads: int
    num_kv_heads: int
    page_size: int
    head_size: int

    @classmethod
    def of(cls, pages: torch.Tensor, num_heads: int) -> "Shape":
        num_pages, _, num_kv_heads, page_size, head_size = pages.shape
        return cls(num_pages, num_heads, num_kv_heads, page_size, head_size)

    @property
    def pages(self) -> tuple[int, ...]:
        return self.num_pages, 2, self.num_kv_heads, self.page_size, self.head_size

    def __post_init__(self) -> None:
        group = self.num_heads // max(self.num_kv_heads, 1)
        if min(self.num_kv_heads, group, self.page_size, self.head_size) < 1:
            raise ValueError(f"{self} has no heads, or pages without numbers")
        if self.num_heads != group * self.num_kv_heads or group > MOST_QUERIES:
            raise ValueError(
                f"{self.num_heads} query heads must be a multiple of {self.num_kv_heads} K/V heads,"
                f" at most {MOST_QUERIES} times as many"
            )
        if self.head_size > MOST_SIZE:
            raise ValueError(f"a head has at most {MOST_SIZE} numbers, not {self.head_size}")


class Parts:
    """Memory for partial results, reused by one plan after another; not by two calls at once."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.float32)

    def room(self, numbers: int) -> np.ndarray:
        """At least so many float32, with any values."""
        if len(self._memory) < numbers:
            self._memory = np.empty(numbers + numbers // 4, np.float32)
        return self._memory


class _Step(ctypes.Structure):
    """rs_step of src/attention_plan.c."""

    _fields_ = [
        ("num_rows", c_int64),
        *((name, c_void_p) for name in ("slot", "start", "kv_len")),
        *((name, c_int64) for name in ("num_slots", "slot_tokens", "num_pages")),
        *((name, c_int64) for name in ("split_tokens", "least_tile", "most_tile")),
    ]


class _Plan(ctypes.Structure):
    """rs_plan of src/attention.h."""

    _fields_ = [
        *((name, c_int64) for name in ("page_size", "num_heads", "num_kv_heads", "head_size")),
        ("window", c_int64),
        ("item_heads", c_int64),
        ("page_table", c_void_p),
        ("table_stride", c_int64),
        *((f"num_{name}", c_int64) for name in ("tokens", "tiles", "items", "parts", "tasks")),
        *((name, c_void_p) for name in ("position", "part_start", "tiles", "items", "members")),
        *((name, c_void_p) for name in ("task_start", "parts", "stats")),
    ]


class AttentionPlan:
    """Who computes what in a step, and which rows share what they read.

    Row r's new tokens are [row_start[r], row_start[r + 1]) of the step, the last ones of the
    kv_len[r] tokens whose pages are page_table[row_slot[r]]; it may have none.
    row_slot, kv_len: [R] and row_start: [R + 1], integers.
    page_table: [slots, pages] int32, rows contiguous; read by every call, so it has to stay as it
        is until the step is over. Past a row's pages any ids.
    window: a token sees the last `window` tokens, itself one of them; 0: all before it.
    parts: where partial results are kept, from one step to the next.

    Raises ValueError for arrays that do not fit each other or name no pages.
    """

    def __init__(
        self,
        row_slot: np.ndarray,
        row_start: np.ndarray,
        kv_len: np.ndarray,
        page_table: np.ndarray,
        shape: Shape,
        *,
        window: int = 0,
        parts: Parts | None = None,
    ) -> None:
        self.shape = shape
        self.window = window
        self._rows = tuple(
            np.ascontiguousarray(a, dtype=np.int64) for a in (row_slot, row_start, kv_len)
        )
        self._table = page_table  # kept alive, as what follows
        _check_rows(*self._rows, page_table, window)
        self.num_tokens = int(self._rows[1][-1])
        self.q_shape = (self.num_tokens, shape.num_heads, shape.head_size)
        self._native = _Plan(
            page_size=shape.page_size,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_size=shape.head_size,
            window=window,
            page_table=page_table.ctypes.data,
            table_stride=page_table.strides[0] // page_table.itemsize,
        )
        self._make()
        padded = -(-shape.head_size // 16) * 16
        vectors = self._native.num_parts * shape.num_heads
        self._parts = (parts or Parts()).room(vectors * (padded + 2))
        self._native.parts = self._parts.ctypes.data
        self._native.stats = self._native.parts + vectors * padded * self._parts.itemsize
        self.address = ctypes.addressof(self._native)  # of the rs_plan, for C

    def _make(self) -> None:
        slot, start, kv_len = self._rows
        shape, table = self.shape, self._table
        group = shape.num_heads // shape.num_kv_heads
        most_tile = MOST_QUERIES // group
        step = _Step(
            num_rows=len(slot),
            slot=slot.ctypes.data,
            start=start.ctypes.data,
            kv_len=kv_len.ctypes.data,
            num_slots=len(table),
            slot_tokens=table.shape[1] * shape.page_size,
            num_pages=shape.num_pages,
            split_tokens=max(SPLIT_QUERIES // group, 1),
            least_tile=min(LEAST_TILE, most_tile),
            most_tile=most_tile,
        )
        bounds = (c_int64 * 3)()
        _raise_if(kernels().rs_bound_plan(byref(step), bounds))
        tiles, items, members = bounds
        entries = 1 << (2 * items).bit_length()
        units = (tiles + items) * shape.num_kv_heads
        size = 4 * tiles + 5 * items + 2 * members + entries + 2 * self.num_tokens + units + 2
        self._memory = np.empty(size, np.int32)
        _raise_if(
            kernels().rs_make_plan(
                byref(self._native), byref(step), self._memory.ctypes.data, bounds, entries - 1
            )
        )

    @property
    def num_tiles(self) -> int:
        """Pieces of rows with many new tokens; each reads its row's K/V."""
        return self._native.num_tiles

    @property
    def items(self) -> np.ndarray:
        """[N, 4] int32, the chunks read for other rows: slot, chunk, first member, members."""
        count = self._native.num_items
        if count == 0:
            return np.empty((0, 4), np.int32)
        return np.ctypeslib.as_array(
            ctypes.cast(self._native.items, POINTER(c_int32)), (count, 4)
        ).copy()


def paged_attention(
    q: torch.Tensor,
    pages: torch.Tensor,
    plan: AttentionPlan,
    options: Options,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of a step's new tokens over the pages of their rows; returns `out`.

    q: [T, num_heads, head_size] float32, any token and head stride.
    pages: a layer's, [num_pages, 2, num_kv_heads, page_size, head_size] float32 or float16,
        contiguous, K at 0 and V at 1; the new tokens' are already there. What lies past a row's
        end, after a token or before its window never takes part, whatever it holds.
    options: its window has to be the plan's.
    out: [T, num_heads, head_size] float32, contiguous; without it a new tensor.

    Raises ValueError on shapes, dtypes, strides or devices that do not fit.
    """
    if out is None:
        out = torch.empty(plan.q_shape, dtype=torch.float32)
    _check(q, pages, plan, options, out)
    if plan.num_tokens:
        token, head, _ = q.stride()
        kernels().rs_attention(
            plan.address, q.data_ptr(), token, head, pages.data_ptr(),
            pages.dtype is torch.float16, out.data_ptr(), options.scale, options.softcap,
        )  # fmt: skip
    return out


def _check_rows(
    slot: np.ndarray, start: np.ndarray, kv_len: np.ndarray, table: np.ndarray, window: int
) -> None:
    if slot.ndim != 1 or kv_len.shape != slot.shape or start.shape != (len(slot) + 1,):
        raise ValueError(
            f"row_slot, row_start and kv_len must be [R], [R + 1] and [R],"
            f" are {slot.shape}, {start.shape} and {kv_len.shape}"
        )
    if table.ndim != 2 or table.dtype != np.int32 or table.strides[1] != table.itemsize:
        raise ValueError("page_table must be [slots, pages] int32 with contiguous rows")
    if window < 0:
        raise ValueError(f"window must be at least 0, is {window}")


def _raise_if(wrong: int) -> None:
    if wrong:
        raise ValueError(WRONG[wrong])


def _check(
    q: torch.Tensor, pages: torch.Tensor, plan: AttentionPlan, options: Options, out: torch.Tensor
) -> None:
    if q.shape != plan.q_shape or out.shape != plan.q_shape:
        raise ValueError(
            f"q and out must be {plan.q_shape} as planned,"
            f" are {tuple(q.shape)} and {tuple(out.shape)}"
        )
    if pages.shape != plan.shape.pages:
        raise ValueError(f"pages must be {plan.shape.pages} as planned, are {tuple(pages.shape)}")
    if not (q.dtype is out.dtype is torch.float32):
        raise ValueError(f"q and out must be float32, are {q.dtype} and {out.dtype}")
    if pages.dtype not in KV_DTYPES:
        raise ValueError(f"pages must be float32 or float16, are {pages.dtype}")
    if not (q.is_cpu and pages.is_cpu and out.is_cpu):
        raise ValueError("q, pages and out must be on the CPU")
    if not (q.stride(-1) == 1 and pages.is_contiguous() and out.is_contiguous()):
        raise ValueError("pages and out must be contiguous, the last stride of q 1")
    if options.window != plan.window:
        raise ValueError(f"the plan is for a window of {plan.window}, not {options.window}")
