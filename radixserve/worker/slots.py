"""What the worker remembers per slot: its page table, and whether it has sampled a token.

Page tables are append-only. Nothing of a slot's former request survives `admit`. The runner calls
`admit` and `free`; batch building reads the tables. What sampling needs is the sampler's.
"""

from collections.abc import Sequence

import numpy as np
import torch
from msgspec import Struct

from radixserve.messages import INT32_BYTES, Row
from radixserve.worker.upload import upload


class Slot(Struct):
    """One running request, as far as the worker knows it."""

    num_pages: int = 0  # used entries of its page table
    sampled: bool = False  # whether a step that was submitted samples a token for it


class Slots:
    """All slots, and their page tables as one array, here and on the device.

    `page_table` and `device_table` are [max_slots, max_pages] int32; entries past a slot's
    `num_pages` mean nothing. On a CPU both are the same memory; on a GPU the device's table
    changes in the order of the steps, behind those that were submitted.
    """

    def __init__(self, max_slots: int, max_pages: int, device: torch.device) -> None:
        self.page_table = np.zeros((max_slots, max_pages), dtype=np.int32)
        self.device_table = torch.from_numpy(self.page_table).to(device)
        self._shared = device.type == "cpu"
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

    def append_pages(self, rows: Sequence[Row]) -> None:
        """Append the rows' new page ids to their slots' page tables."""
        max_pages = self.page_table.shape[1]
        places = []
        for row in rows:
            if not row.pages:
                continue
            slot = self[row.slot]
            start, end = slot.num_pages, slot.num_pages + len(row.pages) // INT32_BYTES
            assert end <= max_pages, f"slot {row.slot} has more pages than the context"
            self.page_table[row.slot, start:end] = np.frombuffer(row.pages, dtype=np.int32)
            slot.num_pages = end
            places.append(np.arange(row.slot * max_pages + start, row.slot * max_pages + end))
        if places and not self._shared:
            self._scatter(np.concatenate(places))

    def _scatter(self, places: np.ndarray) -> None:
        """Copy entries of the flat table to the device."""
        ids = self.page_table.ravel()[places]
        new = upload({"places": places, "ids": ids}, self.device_table.device)
        self.device_table.view(-1).index_copy_(0, new["places"].long(), new["ids"])
