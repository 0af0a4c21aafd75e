"""What the worker remembers per slot: page table, sampling parameters, last token, token counts.

Page tables are append-only. Nothing of a slot's former request survives `admit`. The runner calls
`admit` and `free`; batch building reads the tables; sampling reads and records.
"""

import numpy as np
from msgspec import Struct

from radixserve.messages import Admit, Row, Sampling


class Slot(Struct, kw_only=True):
    """One running request, as far as the worker knows it."""

    sampling: Sampling
    num_pages: int = 0  # used entries of its page table
    last_token: int = -1  # sampled last; -1: none yet
    generated: int = 0  # answer tokens, those before a preemption included
    counts: dict[int, int] = {}  # token -> times generated (0: in the prompt only), for penalties

    def record(self, token: int) -> None:
        """Take note of a newly sampled token."""
        self.last_token = token
        self.generated += 1
        if self.sampling.needs_history:
            self.counts[token] = self.counts.get(token, 0) + 1


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

    def admit(self, admit: Admit) -> None:
        """Start a request in a free slot, with an empty page table."""
        assert self._slots[admit.slot] is None, f"slot {admit.slot} is admitted twice"
        history = np.frombuffer(admit.history, dtype=np.int32)
        counts: dict[int, int] = {}
        if admit.sampling.needs_history:
            counts = dict.fromkeys(history.tolist(), 0)
            for token in history[admit.prompt_len :].tolist():
                counts[token] += 1
        self._slots[admit.slot] = Slot(
            sampling=admit.sampling,
            generated=max(0, len(history) - admit.prompt_len),
            counts=counts,
        )

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
