"""Rows and slots as tensors, on an example small enough to check by hand."""

import pytest
import torch

from radixserve.messages import Row, pack
from radixserve.worker.batch import build_batch
from radixserve.worker.slots import Slots

LAST = torch.tensor([21, 22, 23, 24], dtype=torch.int32)  # sampled last, slot by slot


def test_an_example_by_hand():
    slots = Slots(max_slots=4, max_pages=5)
    first = [
        Row(2, 0, pack([11, 12, 13, 14, 15]), pack([7, 3]), False),
        Row(0, 0, pack([9]), pack([5])),
    ]
    for row in first:
        slots.admit(row.slot)
        slots.append_pages(row)
    slots[0].sampled = True
    rows = [Row(2, 5, pack([16, 17, 18, 19]), pack([8])), Row(0, 1, b"")]
    for row in rows:
        slots.append_pages(row)
    batch = build_batch(rows, slots, LAST, page_size=4)
    assert batch.tokens.tolist() == [16, 17, 18, 19, 21]
    assert batch.positions.tolist() == [5, 6, 7, 8, 1]
    assert batch.write_slots.tolist() == [13, 14, 15, 32, 21]  # pages 7, 3, 8 and 5
    assert batch.row_start.tolist() == [0, 4, 5]
    assert batch.kv_len.tolist() == [9, 2]
    assert batch.page_table.tolist() == [[7, 3, 8], [5, 0, 0]]
    assert batch.wanted.tolist() == [3, 4]
    tables = (batch.page_table, batch.row_start, batch.kv_len)
    assert all(t.dtype == torch.int32 and t.is_contiguous() for t in tables)


def test_rows_that_do_not_sample_are_not_wanted():
    slots = Slots(1, 1)
    slots.admit(0)
    row = Row(0, 0, pack([1, 2]), pack([0]), False)
    slots.append_pages(row)
    batch = build_batch([row], slots, LAST, page_size=4)
    assert batch.wanted.shape == (0,) and batch.wanted.dtype == torch.int64


def test_an_empty_row_needs_a_sampled_token():
    slots = Slots(1, 1)
    slots.admit(0)
    row = Row(0, 0, b"", pack([0]))
    slots.append_pages(row)
    with pytest.raises(AssertionError, match="no sampled token"):
        build_batch([row], slots, LAST, page_size=4)


def test_misuse_is_an_assertion():
    slots = Slots(1, 2)
    with pytest.raises(AssertionError, match="no request was admitted"):
        slots[0]
    slots.admit(0)
    with pytest.raises(AssertionError, match="admitted twice"):
        slots.admit(0)
    with pytest.raises(AssertionError, match="more pages than the context"):
        slots.append_pages(Row(0, 0, b"", pack([1, 2, 3])))
