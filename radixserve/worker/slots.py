"""What the worker remembers per slot: its page table, and whether it has sampled a token.

Page tables are append-only. Nothing of a slot's former request survives `admit`. The runner calls
`admit` and `free`; batch building reads the tables. What sampling needs is the sampler's.
"""

import numpy as np
from msgspec import Struct

from radixserve.messages import Row


class Slot(Struct):
    """One running request, as far as the worker knows it."""

    num_pages: int = 0  # used entries of its page table
    sampled: bool = False  # whether a step that was submitted samples a token for it


class Slots:
    """All slots, and their page tables as one array.

    `page_table` is [max_slots, max_pages] int32; entries past a slot's `num_pages` mean nothing.
    """

    def __init__(self, max_slots: int, max_pages: int) -> None:
        self.page_table = np.zeros((max_slots, max_pages), dtype=np.int32)
        self._slots: list[Slot | None] = [None] * max_slots

    def __getitem__(self, slot: int) -> Slot:
        found = self._slots[slot]
        assert found is not None, f"slot {slot} is used but no request was admitted to it"
        return found

    def admit(self, slot: int) -> None:
        """Start a request in a free slot, with an empty page table."""
        assert self._slots[slot] is None, f"slot {slot} is admitted twice"
        self._slots[slot] = Slot()

    def free(self, slot: int) -> None:
        """Forget the slot's request."""
        self._slots[slot] = None

    def append_pages(self, row: Row) -> None:
        """Append the row's new page ids to its slot's page table."""
        pages = np.frombuffer(row.pages, dtype=np.int32)
        slot = self[row.slot]
        end = slot.num_pages + len(pages)
        assert end <= self.page_table.shape[1], f"slot {row.slot} has more pages than the context"
        self.page_table[row.slot, slot.num_pages : end] = pages
        slot.num_pages = end
