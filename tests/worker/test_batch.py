"""Rows and slots as tensors, on an example small enough to check by hand."""

import pytest
import torch

from radixserve.messages import Row, pack
from radixserve.worker.batch import Batch, bring, gather_rows
from radixserve.worker.slots import Slots

CPU = torch.device("cpu")
LAST = torch.tensor([21, 22, 23, 24], dtype=torch.int32)  # sampled last, slot by slot


def test_an_example_by_hand():
    slots = Slots(4, 5, CPU)
    first = [
        Row(2, 0, pack([11, 12, 13, 14, 15]), pack([7, 3]), False),
        Row(0, 0, pack([9]), pack([5])),
    ]
    for row in first:
        slots.admit(row.slot)
        slots.append_pages([row])
    slots[0].sampled = True
    rows = [Row(2, 5, pack([16, 17, 18, 19]), pack([8])), Row(0, 1, b"")]
    for row in rows:
        slots.append_pages([row])
    host = gather_rows(rows, slots, page_size=4)
    batch = bring(host, LAST, slots.device_table)
    assert batch.tokens.tolist() == [16, 17, 18, 19, 21]
    assert batch.positions.tolist() == [5, 6, 7, 8, 1]
    assert batch.write_slots.tolist() == [13, 14, 15, 32, 21]  # pages 7, 3, 8 and 5
    assert host.row_start.tolist() == [0, 4, 5]
    assert host.kv_len.tolist() == [9, 2]
    assert host.row_slot.tolist() == [2, 0]
    assert host.sampled.tolist() == [0, 1]
    assert batch.token_slot.tolist() == [2, 2, 2, 2, 0]
    assert batch.page_table.tolist() == [[5, 0, 0, 0, 0], [0] * 5, [7, 3, 8, 0, 0], [0] * 5]
    assert batch.page_table.data_ptr() == slots.page_table.ctypes.data, "shared on a CPU"
    assert batch.wanted.tolist() == [3, 4]
    tensors = (getattr(batch, name) for name in Batch.__struct_fields__)
    assert all(t.dtype == torch.int32 and t.is_contiguous() for t in tensors)


def test_rows_that_do_not_sample_are_not_wanted():
    slots = Slots(1, 1, CPU)
    slots.admit(0)
    row = Row(0, 0, pack([1, 2]), pack([0]), False)
    slots.append_pages([row])
    batch = bring(gather_rows([row], slots, page_size=4), LAST, slots.device_table)
    assert batch.wanted.shape == (0,) and batch.wanted.dtype == torch.int32


def test_an_empty_row_needs_a_sampled_token():
    slots = Slots(1, 1, CPU)
    slots.admit(0)
    row = Row(0, 0, b"", pack([0]))
    slots.append_pages([row])
    with pytest.raises(AssertionError, match="no sampled token"):
        gather_rows([row], slots, page_size=4)


def test_new_pages_are_scattered_into_a_table_of_another_device():
    slots = Slots(3, 4, CPU)
    slots.device_table, slots._shared = torch.full((3, 4), -1, dtype=torch.int32), False
    for slot in (2, 0):
        slots.admit(slot)
    slots.append_pages([Row(2, 0, b"", pack([7, 3])), Row(0, 0, b"", pack([5]))])
    slots.append_pages([Row(0, 0, b""), Row(2, 0, b"", pack([8]))])
    assert slots.device_table.tolist() == [[5, -1, -1, -1], [-1] * 4, [7, 3, 8, -1]]
    slots.free(2)
    slots.admit(2)
    slots.append_pages([Row(2, 0, b"", pack([1]))])
    assert slots.device_table.tolist() == [[5, -1, -1, -1], [-1] * 4, [1, 3, 8, -1]]


def test_misuse_is_an_assertion():
    slots = Slots(1, 2, CPU)
    with pytest.raises(AssertionError, match="no request was admitted"):
        slots[0]
    slots.admit(0)
    with pytest.raises(AssertionError, match="admitted twice"):
        slots.admit(0)
    with pytest.raises(AssertionError, match="more pages than the context"):
        slots.append_pages([Row(0, 0, b"", pack([1, 2, 3]))])
