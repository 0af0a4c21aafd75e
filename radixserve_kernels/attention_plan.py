"""Which program of `paged_attention` computes what in a step: made on the host.

Rows with many new tokens become tiles. The tokens of all other rows become members of items, one
item for a chunk of K/V: tokens of rows whose page ids agree over a whole chunk share one read of
it, whichever requests they belong to. Chunks lie at absolute positions, so neither the nodes of a
tree nor the batch change the order in which a token's results are added (`attention_kernels.py`).

Called by the worker's triton attention backend once per step. A decode step changes nearly nothing:
its items are kept by slot, and touched only where a request comes, goes, or begins a chunk.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radixserve_kernels.tiles import AttentionTiles

Ints = NDArray[np.int32]
Key = tuple[int, bytes]  # a whole chunk: its index, and the ids of the pages that hold it
ITEM_HEAD = 2  # columns of an item before its members: slot whose page table to read, chunk
NOBODY = -1  # in the place of a member, or of a token


@dataclass(frozen=True)
class Plan:
    """What the kernels read, int32."""

    tiles: Ints  # [N, 4]: slot, first token, tokens, position of the first
    narrow: Ints  # [N, 2 + members]: items for `AttentionTiles.narrow`
    wide: Ints  # the same for `AttentionTiles.wide`
    lookup: Ints  # [slots + T]: the token of a member of an item, or `NOBODY`
    part_start: Ints  # [T + 1]: where a token's partial results begin, one per chunk; tiled: none
    same_items: bool  # `narrow` and `wide` begin with all that the last plan of this planner had

    @property
    def num_parts(self) -> int:
        return int(self.part_start[-1])

    def arrays(self) -> dict[str, Ints]:
        """The tensors of a `paged_attention.Work`, by name."""
        return {
            "tiles": self.tiles,
            "narrow": self.narrow,
            "wide": self.wide,
            "counts": np.array([len(self.narrow), len(self.wide)], np.int32),
            "lookup": self.lookup,
            "part_start": self.part_start,
        }


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
        self._tile = tiles.tile.block_m // group
        self._max_parts = max_parts
        self._narrow = _Items(tiles.narrow.block_m // group)
        self._wide = _Items(tiles.wide.block_m // group)
        self._groups: list[list[_Group]] = [[] for _ in page_table]  # of a slot, by chunk
        self._known: dict[Key, _Group] = {}
        self._begun = np.zeros(len(page_table), np.int32)  # chunks of a slot that have a group
        self._full = np.zeros(len(page_table), np.int32)  # of those, the ones with a key
        self._told = -1  # changes of the items that the last plan had

    def forget(self, slot: int) -> None:
        """The slot's page table will be another one."""
        for group in self._groups[slot]:
            self._leave(group, slot)
        self._groups[slot].clear()
        self._begun[slot] = self._full[slot] = 0

    def plan(self, slots: Ints, start: Ints, new: Ints) -> Plan:
        """A step in which row r computes tokens [start[r], start[r] + new[r]) of slots[r].

        All [R] int32. The tokens of the step are the rows' new ones, one row after another.
        """
        row_start = np.concatenate(([0], np.cumsum(new)))
        parts = (start + new - 1) // self._chunk + 1  # of each row's last token
        single = new == 1
        split = new <= self._split_tokens
        if (parts @ (new * split)) > self._max_parts:
            split = self._fitting(parts * new, split)
        lookup = np.full(len(self._table) + row_start[-1], NOBODY, np.int32)
        decoding = np.flatnonzero(single & split)
        lookup[slots[decoding]] = row_start[decoding]
        self._follow(slots[decoding], start[decoding] + 1)
        several = np.flatnonzero(split & ~single)
        extra: tuple[Ints, Ints] | None = None
        if len(several):
            lookup[len(self._table) :] = np.arange(row_start[-1])
            extra = self._extend(slots[several], row_start[several], start[several], new[several])
        changes = self._narrow.changes + self._wide.changes
        same, self._told = extra is None and changes == self._told, changes
        narrow, wide = self._narrow.used(), self._wide.used()
        if extra is not None:
            narrow, wide = np.concatenate((narrow, extra[0])), np.concatenate((wide, extra[1]))
        tiled = np.flatnonzero(~split)
        tiles = self._tiles(slots[tiled], row_start[tiled], start[tiled], new[tiled])
        return Plan(
            tiles, narrow, wide, lookup, self._part_start(row_start, start, new, split), same
        )

    def _fitting(self, parts: Ints, split: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Those of the rows to split for whose partial results there is room, cheapest first."""
        order = np.argsort(parts, kind="stable")
        order = order[split[order]]
        fitting = np.zeros_like(split)
        fitting[order[np.cumsum(parts[order]) <= self._max_parts]] = True
        return fitting

    def _part_start(
        self, row_start: Ints, start: Ints, new: Ints, split: NDArray[np.bool_]
    ) -> Ints:
        position = np.arange(row_start[-1]) - np.repeat(row_start[:-1] - start, new)
        parts = (position // self._chunk + 1) * np.repeat(split, new)
        return np.concatenate(([0], np.cumsum(parts))).astype(np.int32)

    def _tiles(self, slots: Ints, first: Ints, start: Ints, new: Ints) -> Ints:
        """Rows in pieces of a tile's tokens; those that read most go first."""
        pieces = -(-new // self._tile)
        row = np.repeat(np.arange(len(new)), pieces)
        offset = (np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * self._tile
        count = np.minimum(self._tile, new[row] - offset)
        tiles = np.stack((slots[row], first[row] + offset, count, start[row] + offset), 1)
        return tiles[np.argsort(-tiles[:, 3], kind="stable")].astype(np.int32)

    def _follow(self, slots: Ints, end: Ints) -> None:
        """Keep the items of slots that decode: the chunks of tokens below `end`."""
        begun, full = -(-end // self._chunk), end // self._chunk
        behind = np.flatnonzero((self._begun[slots] < begun) | (self._full[slots] < full))
        for index in behind.tolist():
            slot = int(slots[index])
            groups = self._groups[slot]
            for chunk in range(int(self._full[slot]), int(full[index])):
                self._join(groups, slot, chunk)
            if len(groups) < begun[index]:  # the open chunk is the slot's own
                group = _Group(len(groups))
                groups.append(group)
                self._place(group, slot)
            self._begun[slot], self._full[slot] = begun[index], full[index]

    def _join(self, groups: list["_Group"], slot: int, chunk: int) -> None:
        """A chunk of the slot is whole: find or make the group of all that read its pages."""
        key = self._key(slot, chunk)
        known = self._known.get(key)
        own = groups[chunk] if chunk < len(groups) else None
        if known is None:
            if own is None:
                own = _Group(chunk)
                groups.append(own)
                self._place(own, slot)
            own.key = key
            self._known[key] = own
            return
        if own is None:
            groups.append(known)
        else:
            self._leave(own, slot)
            groups[chunk] = known
        self._place(known, slot)

    def _key(self, slot: int, chunk: int) -> Key:
        begin = chunk * self._chunk // self._page_size
        end = -(-(chunk + 1) * self._chunk // self._page_size)
        return chunk, self._table[slot, begin:end].tobytes()

    def _place(self, group: "_Group", slot: int) -> None:
        """A member more: in narrow items while one holds all, in wide ones beyond."""
        count = len(group.slots)
        group.slots.append(slot)
        if count == self._narrow.members:
            self._narrow.drop(group.items.pop())
            for first in range(0, count + 1, self._wide.members):
                piece = group.slots[first : first + self._wide.members]
                group.items.append(self._wide.take(group.chunk, piece))
            return
        items = self._narrow if count < self._narrow.members else self._wide
        piece, column = divmod(count, items.members)
        if column == 0:
            group.items.append(items.take(group.chunk, [slot]))
        else:
            items.put(group.items[piece], column, slot)

    def _leave(self, group: "_Group", slot: int) -> None:
        """A member less; the last one takes its place."""
        index = group.slots.index(slot)
        last = group.slots.pop()
        count = len(group.slots)
        items = self._narrow if count < self._narrow.members else self._wide
        if index < count:
            group.slots[index] = last
            items.put(group.items[index // items.members], index % items.members, last)
        piece, column = divmod(count, items.members)
        if column == 0:
            items.drop(group.items.pop())
        else:
            items.put(group.items[piece], column, NOBODY)
        if count == self._narrow.members:
            while group.items:
                self._wide.drop(group.items.pop())
            group.items.append(self._narrow.take(group.chunk, group.slots))
        if not count and group.key is not None:
            del self._known[group.key]

    def _extend(self, slots: Ints, first: Ints, start: Ints, new: Ints) -> tuple[Ints, Ints]:
        """Narrow and wide items for rows of several tokens, which are there for one step only."""
        reading: dict[Key, tuple[int, list[Ints]]] = {}  # -> slot, tokens
        rows = zip(slots.tolist(), first.tolist(), start.tolist(), new.tolist(), strict=True)
        for slot, token, cached, count in rows:
            end = cached + count
            for chunk in range(-(-end // self._chunk)):
                whole = (chunk + 1) * self._chunk <= end
                key = self._key(slot, chunk) if whole else (chunk, b"%d" % slot)
                skipped = max(chunk * self._chunk - cached, 0)
                tokens = np.arange(token + skipped, token + count)
                reading.setdefault(key, (slot, []))[1].append(tokens)
        narrow, wide = _Items(self._narrow.members), _Items(self._wide.members)
        for (chunk, _), (slot, pieces) in reading.items():
            members = np.concatenate(pieces) + len(self._table)
            for begin in range(0, len(members), wide.members):
                piece = members[begin : begin + wide.members]
                items = narrow if len(piece) <= narrow.members else wide
                items.take(chunk, piece, slot)
        return narrow.used(), wide.used()


class _Group:
    """Slots that read the same K/V over one chunk."""

    __slots__ = ("chunk", "items", "key", "slots")

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.key: Key | None = None  # once the chunk is whole
        self.slots: list[int] = []
        self.items: list[int] = []  # rows of `_Items`, each with the next so many slots


class _Items:
    """Rows that stay where they are. One without members is skipped by the kernels, and reused."""

    def __init__(self, members: int) -> None:
        self.members = members
        self.changes = 0
        self._rows = np.full((64, ITEM_HEAD + members), NOBODY, np.int32)
        self._used = 0
        self._free: list[int] = []

    def used(self) -> Ints:
        return self._rows[: self._used]

    def take(self, chunk: int, members: list[int] | Ints, slot: int | None = None) -> int:
        """A new item; without `slot`, members are slots, and the first one's page table is read."""
        if self._free:
            row = self._free.pop()
        else:
            row = self._used
            self._used += 1
            if row == len(self._rows):
                self._rows = np.concatenate((self._rows, np.full_like(self._rows, NOBODY)))
        self._rows[row, 0] = members[0] if slot is None else slot
        self._rows[row, 1] = chunk
        self._rows[row, ITEM_HEAD : ITEM_HEAD + len(members)] = members
        self.changes += 1
        return row

    def put(self, row: int, column: int, slot: int) -> None:
        """Member `column` of an item is `slot` from now on, or `NOBODY`."""
        self._rows[row, ITEM_HEAD + column] = slot
        if column == 0:
            self._rows[row, 0] = slot
        self.changes += 1

    def drop(self, row: int) -> None:
        self._rows[row, ITEM_HEAD:] = NOBODY
        self._free.append(row)
        self.changes += 1
