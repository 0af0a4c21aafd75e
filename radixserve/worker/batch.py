"""A `RunStep`'s rows as the tensors of one forward pass. Reads the slots, changes nothing.

The runner calls it once per step; the model and the attention backend read the result.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from msgspec import Struct

from radixserve.messages import INT32_BYTES, Row
from radixserve.worker.slots import Slots
from radixserve.worker.upload import upload

SAMPLED_LAST = np.array([-1], dtype=np.int32)  # tokens of a row that goes on from the last one


class HostBatch(Struct, frozen=True):
    """R rows with T tokens in all, as numpy arrays. Row r owns [row_start[r], row_start[r + 1]).

    Row r's pages are page_table[row_slot[r]]; the table is the slots' own, and changes with the
    next step.
    """

    tokens: np.ndarray  # [T] int32; a negative one stands for what its slot sampled last
    positions: np.ndarray  # [T] int64
    write_slots: np.ndarray  # [T] int64, page * page_size + offset
    token_slot: np.ndarray  # [T] int64, the slot of each token's row
    row_start: np.ndarray  # [R + 1] int64
    kv_len: np.ndarray  # [R] int64, the new tokens included
    row_slot: np.ndarray  # [R] int64
    page_table: np.ndarray  # [max_slots, max_pages] int32; past a row's pages any ids
    sampled: np.ndarray  # [S] int64, the rows whose last token is wanted
    scored: np.ndarray  # [N] int64, indices into T: the next token's log probability is wanted

    @property
    def wanted(self) -> np.ndarray:
        """[S + N], indices into T whose logits are looked at: sampled from, then scored."""
        return np.concatenate((self.row_start[1:][self.sampled] - 1, self.scored))

    @property
    def scored_rows(self) -> np.ndarray:
        """The rows with `scored` tokens, ascending."""
        return np.unique(np.searchsorted(self.row_start, self.scored, side="right") - 1)


class Batch(Struct, frozen=True):
    """What the device reads of a step, int32."""

    tokens: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    write_slots: torch.Tensor  # [T]; a negative one: the token's K/V are not written
    token_slot: torch.Tensor  # [T]
    wanted: torch.Tensor  # [S + N]
    page_table: torch.Tensor  # [max_slots, max_pages]


def gather_rows(rows: Sequence[Row], slots: Slots, *, page_size: int) -> HostBatch:
    """`rows` (at least one), whose pages are already in the slots' tables, as one batch."""
    pieces = [_tokens(row, slots) for row in rows]
    new = np.array([len(piece) for piece in pieces])
    start = np.array([row.start for row in rows])
    row_slot = np.array([row.slot for row in rows])
    kv_len = start + new
    _check_pages(rows, slots, -(-kv_len // page_size))

    if (new == 1).all():  # as when all rows decode
        row_start, token_slot, positions = np.arange(len(rows) + 1), row_slot, start
    else:
        row_start = np.concatenate(([0], np.cumsum(new)))
        row_of = np.repeat(np.arange(len(rows)), new)
        token_slot = row_slot[row_of]
        positions = np.arange(row_start[-1]) - (row_start[:-1] - start)[row_of]
    page, offset = np.divmod(positions, page_size)
    return HostBatch(
        tokens=np.concatenate(pieces),
        positions=positions,
        write_slots=slots.page_table[token_slot, page].astype(np.int64) * page_size + offset,
        token_slot=token_slot,
        row_start=row_start,
        kv_len=kv_len,
        row_slot=row_slot,
        page_table=slots.page_table,
        sampled=np.flatnonzero([row.sample for row in rows]),
        scored=_scored(rows, row_start),
    )


def _scored(rows: Sequence[Row], row_start: np.ndarray) -> np.ndarray:
    places = [np.zeros(0, dtype=np.int64)]
    for row, start in zip(rows, row_start.tolist(), strict=False):
        if row.score is not None:
            count = len(row.score.tokens) // INT32_BYTES
            places.append(start + row.score.at + np.arange(count))
    return np.concatenate(places)


INPUTS = ("tokens", "positions", "write_slots", "token_slot", "wanted")


def bring(host: HostBatch, last_tokens: torch.Tensor, page_table: torch.Tensor) -> Batch:
    """The batch on the device, which alone reads `last_tokens` and `page_table`.

    `last_tokens` [max_slots] int32: what each slot sampled last, and what an empty row computes.
    """
    arrays = {name: getattr(host, name) for name in INPUTS}
    if last_tokens.device.type == "cpu":  # where they need not be packed for one copy
        tensors = {name: torch.from_numpy(a.astype(np.int32)) for name, a in arrays.items()}
    else:
        tensors = upload(arrays, last_tokens.device)
    tensors["tokens"] = with_last(tensors, last_tokens)
    return Batch(**tensors, page_table=page_table)


def with_last(tensors: Mapping[str, torch.Tensor], last_tokens: torch.Tensor) -> torch.Tensor:
    """The tokens of a step's `INPUTS`, with the last ones of their slots where they stand."""
    tokens = tensors["tokens"]
    last = last_tokens.index_select(0, tensors["token_slot"])
    return torch.where(tokens < 0, last, tokens)


class Copies(Struct, frozen=True):
    """Which K/V of single tokens a step copies. A place is page * page_size + offset.

    All sources of `standing` may be read before anything is written.
    """

    standing: dict[int, int]  # place -> the place whose K/V it is to hold
    written: dict[int, int]  # place -> index of the new token whose K/V it is to hold as well


class Repeats(Struct, frozen=True):
    """New tokens whose K/V are written to a second place: `Copies.written` on the device."""

    places: torch.Tensor  # [N] int32, page * page_size + offset
    tokens: torch.Tensor  # [N] int32, indices into T


def plan_copies(
    rows: Sequence[Row], slots: Slots, page_size: int, write_slots: Sequence[int]
) -> Copies:
    """What the rows' `copy_from` ask for, one after another in row order.

    Who copies from a place that is a target itself gets what that one gets. `write_slots`: the
    places of the step's new tokens. The pages must be in the slots' tables.
    """
    standing: dict[int, int] = {}
    written: dict[int, int] = {}
    new = {place: t for t, place in enumerate(write_slots)} if _live(rows) else {}
    for row in rows:
        if row.copy_from < 0:
            continue
        index, count = divmod(row.start, page_size)
        assert index < slots[row.slot].num_pages, f"slot {row.slot} has no page to copy to"
        source = row.copy_from * page_size
        target = int(slots.page_table[row.slot, index]) * page_size
        for offset in range(count):
            place = source + offset
            standing.pop(target + offset, None)
            written.pop(target + offset, None)
            if place in written:
                written[target + offset] = written[place]
            elif row.copy_live and place in new and place not in standing:
                written[target + offset] = new[place]
            else:
                standing[target + offset] = standing.get(place, place)
    return Copies(standing, written)


def _live(rows: Sequence[Row]) -> bool:
    return any(row.copy_live for row in rows)


def _tokens(row: Row, slots: Slots) -> np.ndarray:
    """The row's token ids; for an empty row a negative one, to be replaced on the device."""
    if row.tokens:
        return np.frombuffer(row.tokens, dtype=np.int32)
    assert slots[row.slot].sampled, f"slot {row.slot} has no sampled token to continue from"
    return SAMPLED_LAST


def _check_pages(rows: Sequence[Row], slots: Slots, num_pages: np.ndarray) -> None:
    for row, pages in zip(rows, num_pages.tolist(), strict=True):
        have = slots[row.slot].num_pages
        assert have >= pages, f"slot {row.slot} has {have} pages but its row needs {pages}"
