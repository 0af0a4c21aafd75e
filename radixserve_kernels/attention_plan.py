"""Which program of `paged_attention` computes what in a step: made on the host, in numpy.

Rows with many new tokens become tiles. The tokens of all other rows are grouped by the chunk they
read: tokens of rows whose page ids agree over a whole chunk share one read of its K/V, whichever
requests they belong to. Chunks lie at absolute positions, so neither the tree's nodes nor the batch
change the order in which a token's results are added (`attention_kernels.py`).

Called by the worker's triton attention backend once per step. In a decode step nearly nothing
changes: the plan stands until a row comes, goes, or starts a chunk.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radixserve_kernels.tiles import AttentionTiles

Ints = NDArray[np.int32]
NO_ITEMS: Ints = np.zeros((0, 4), np.int32)


@dataclass(frozen=True)
class Plan:
    """The arrays that the kernels read, int32. An item names the slot whose page table to read."""

    tiles: Ints  # [N, 4]: slot, first token, tokens, position of the first
    narrow: Ints  # [N, 4]: slot, chunk, first member, members; for `AttentionTiles.narrow`
    wide: Ints  # as `narrow`, for `AttentionTiles.wide`
    members: Ints  # tokens; the first T are 0 .. T - 1
    part_start: Ints  # [T + 1]: where a token's partial results begin, one per chunk; tiled: none

    @property
    def num_parts(self) -> int:
        return int(self.part_start[-1])


class Planner:
    """Plans steps over slots whose page tables only grow until they are forgotten."""

    def __init__(
        self,
        page_table: Ints,
        *,
        page_size: int,
        group: int,
        tiles: AttentionTiles,
        max_parts: int,
    ) -> None:
        """`page_table` [slots, pages] is read on every call, `group` is query heads per K/V head.

        `max_parts`: partial results that a step has room for. Rows that find none become tiles.
        """
        self._table = page_table
        self._page_size = page_size
        self._chunk = tiles.chunk
        self._split_tokens = tiles.split_tokens
        self._narrow = tiles.narrow.block_m // group
        self._wide = tiles.wide.block_m // group
        self._tile = tiles.tile.block_m // group
        self._max_parts = max_parts
        most = -(-page_table.shape[1] * page_size // tiles.chunk)
        # full chunks of a slot: keys and, in `_numbers`, numbers that are equal where the keys are
        self._keys: list[list[tuple[int, bytes]]] = [[] for _ in page_table]
        self._numbers = np.zeros((len(page_table), most), np.int32)
        self._known: dict[tuple[int, bytes], list[int]] = {}  # chunk, pages -> number, slots
        self._free: list[int] = []
        self._decode: _DecodePlan | None = None

    def forget(self, slot: int) -> None:
        """The slot's page table will be another one."""
        for key in self._keys[slot]:
            entry = self._known[key]
            entry[1] -= 1
            if entry[1] == 0:
                self._free.append(entry[0])
                del self._known[key]
        self._keys[slot].clear()
        self._decode = None

    def plan(self, slots: Ints, start: Ints, new: Ints) -> Plan:
        """A step in which row r computes tokens [start[r], start[r] + new[r]) of slots[r].

        All [R] int32. The tokens of the step are the rows' new ones, one row after another. A plan
        that still holds is returned as the same object.
        """
        if self._decode is not None and self._decode.grow(slots, start, new):
            return self._decode.plan
        self._decode = None
        return self._replan(slots, start, new)

    def _replan(self, slots: Ints, start: Ints, new: Ints) -> Plan:
        row_start = np.concatenate(([0], np.cumsum(new))).astype(np.int32)
        num_tokens = int(row_start[-1])
        end = start + new
        chunks = -(-end // self._chunk)  # per row
        position = np.arange(num_tokens, dtype=np.int32) - np.repeat(row_start[:-1] - start, new)
        parts = position // self._chunk + 1  # per token
        split = self._split_rows(row_start, new, parts)
        parts[~np.repeat(split, new)] = 0
        part_start = np.concatenate(([0], np.cumsum(parts))).astype(np.int32)
        tiles = self._tiles(slots[~split], row_start[:-1][~split], start[~split], new[~split])
        rows = np.flatnonzero(split)
        groups, members = self._groups(slots[rows], row_start[rows], start[rows], end[rows])
        everyone = np.concatenate((np.arange(num_tokens, dtype=np.int32), members))
        narrow, wide = self._items(groups)
        plan = Plan(tiles, narrow, wide, everyone, part_start)
        if (new == 1).all() and split.all():
            self._decode = _DecodePlan(plan, slots, start, chunks, self._chunk, self._max_parts)
        return plan

    def _split_rows(self, row_start: Ints, new: Ints, parts: Ints) -> NDArray[np.bool_]:
        """Which rows are computed by chunks: short ones, the cheapest first while there is room."""
        split: NDArray[np.bool_] = new <= self._split_tokens
        per_row = np.add.reduceat(parts, row_start[:-1])
        per_row[~split] = 0
        if per_row.sum() > self._max_parts:
            order = np.argsort(per_row, kind="stable")
            split[order[np.cumsum(per_row[order]) > self._max_parts]] = False
        return split

    def _tiles(self, slots: Ints, first: Ints, start: Ints, new: Ints) -> Ints:
        """Rows in pieces of a tile's tokens; those that read most go first."""
        if not len(slots):
            return NO_ITEMS
        row, offset, count = _pieces(new, self._tile)
        tiles = np.stack((slots[row], first[row] + offset, count, start[row] + offset), 1)
        return tiles[np.argsort(-tiles[:, 3], kind="stable")].astype(np.int32)

    def _groups(
        self, slots: Ints, first: Ints, start: Ints, end: Ints
    ) -> tuple[Ints, Ints]:
        """Tokens that read the same chunk: [N, 4] slot, chunk, first member, members.

        And the members [M] that are not tokens in a row, which stand behind the step's tokens.
        """
        if not len(slots):
            return NO_ITEMS, np.zeros(0, np.int32)
        num_tokens = int(first[-1] + end[-1] - start[-1])
        full = end // self._chunk
        for slot, count in zip(slots.tolist(), full.tolist(), strict=True):
            if count > len(self._keys[slot]):
                self._number(slot, count)
        chunks = -(-end // self._chunk)
        columns = np.arange(int(chunks.max()), dtype=np.int32)
        row, chunk = np.nonzero(columns < chunks[:, None])
        skipped = np.maximum(chunk * self._chunk - start[row], 0)  # new tokens ahead of the chunk
        begin, count = first[row] + skipped, end[row] - start[row] - skipped
        alone = np.stack((slots[row], chunk, begin, count), 1).astype(np.int32)
        is_full = chunk < full[row]
        number = self._numbers[slots[row[is_full]], chunk[is_full]]
        shared = np.zeros(len(row), bool)
        shared[is_full] = np.bincount(number)[number] > 1
        if not shared.any():
            return alone, np.zeros(0, np.int32)
        found = np.flatnonzero(shared)
        _, rank = np.unique(self._numbers[slots[row[found]], chunk[found]], return_inverse=True)
        order = np.argsort(rank.astype(np.uint16 if len(found) < 2**16 else np.int64), kind="stable")
        found = found[order]
        borders = np.flatnonzero(np.diff(rank[order], prepend=-1))
        sizes = count[found]
        members = _ranges(begin[found], sizes)
        before = np.concatenate(([0], np.cumsum(sizes)))
        together = alone[found[borders]]
        together[:, 2] = num_tokens + before[borders]
        together[:, 3] = np.diff(before[np.append(borders, len(found))])
        return np.concatenate((together, alone[~shared])), members

    def _number(self, slot: int, count: int) -> None:
        """Give the slot's full chunks up to `count` their numbers."""
        keys = self._keys[slot]
        for chunk in range(len(keys), count):
            begin = chunk * self._chunk // self._page_size
            end = -(-(chunk + 1) * self._chunk // self._page_size)
            key = (chunk, self._table[slot, begin:end].tobytes())
            entry = self._known.get(key)
            if entry is None:
                number = self._free.pop() if self._free else len(self._known)
                entry = self._known[key] = [number, 0]
            entry[1] += 1
            self._numbers[slot, chunk] = entry[0]
            keys.append(key)

    def _items(self, groups: Ints) -> tuple[Ints, Ints]:
        """Groups in pieces: wide ones, and narrow ones for what fits into one."""
        index, offset, count = _pieces(groups[:, 3], self._wide)
        items = groups[index]
        items[:, 2] += offset
        items[:, 3] = count
        small = count <= self._narrow
        return items[small], items[~small]


class _DecodePlan:
    """The plan of a step of single tokens, grown for the next one while the rows stay the same."""

    def __init__(
        self, plan: Plan, slots: Ints, start: Ints, chunks: Ints, chunk: int, max_parts: int
    ) -> None:
        self.plan = plan
        self._slots = slots.copy()
        self._start = start.copy()
        self._chunks = chunks.copy()
        self._chunk = chunk
        self._max_parts = max_parts

    def grow(self, slots: Ints, start: Ints, new: Ints) -> bool:
        """Take in a step of the same rows, one token on. False if it is another step."""
        if len(slots) != len(self._slots) or not (
            np.array_equal(slots, self._slots)
            and np.array_equal(start, self._start + 1)
            and (new == 1).all()
        ):
            return False
        self._start += 1
        begun = np.flatnonzero(start % self._chunk == 0)
        if len(begun):
            if self.plan.num_parts + len(begun) > self._max_parts:
                return False
            self._begin(begun)
        return True

    def _begin(self, rows: NDArray[np.intp]) -> None:
        """The rows start a chunk, of which nobody else can know anything yet."""
        ones = np.ones(len(rows))
        items = np.stack((self._slots[rows], self._chunks[rows], rows, ones), 1).astype(np.int32)
        self._chunks[rows] += 1
        self.plan = Plan(
            self.plan.tiles,
            np.concatenate((self.plan.narrow, items)),
            self.plan.wide,
            self.plan.members,
            np.concatenate(([0], np.cumsum(self._chunks))).astype(np.int32),
        )


def _pieces(counts: Ints, size: int) -> tuple[Ints, Ints, Ints]:
    """Each count in pieces of at most `size`: index into counts, offset, length of every piece."""
    pieces = -(-counts // size)
    index = np.repeat(np.arange(len(counts)), pieces)
    offset = _ranges(np.zeros(len(counts), np.int64), pieces) * size
    return index, offset, np.minimum(size, counts[index] - offset)


def _ranges(begin: Ints, count: Ints) -> Ints:
    """begin[i], begin[i] + 1, ... count[i] numbers, for one i after another."""
    before = np.cumsum(count) - count
    return (np.arange(int(count.sum())) + np.repeat(begin - before, count)).astype(np.int32)
