"""`Row.copy_from`: the start of a page is another page's, as if the row had computed it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from radixserve.messages import Row, Sampling, pack, unpack
from radixserve.worker.attention import BACKENDS
from radixserve.worker.batch import Copies, plan_copies
from radixserve.worker.kv_cache import KVCache
from radixserve.worker.slots import Slots
from tests.worker.requests import Request, answer, free, step
from tests.worker.test_exactness import PAGES, PROMPT

PAGE = 8
NUM_PAGES = 6
LOGPROBS = Sampling(seed=0, temperature=0.0, top_logprobs=5)
backends = pytest.mark.parametrize("backend", BACKENDS)


def row(slot: int, start: int, page: int, copy_from: int) -> Row:
    """A row of one token, on a page of its own."""
    return Row(slot, start, pack([1]), pack([page]), True, copy_from)


def slots_for(rows: list[Row]) -> Slots:
    slots = Slots(len(rows), 1, torch.device("cpu"))
    for each in rows:
        slots.admit(each.slot)
        slots.append_pages([each])
    return slots


@backends
def test_a_copied_part_of_a_page_answers_like_a_computed_one(make_runner, backend):
    """The first page is shared, of the second only a part: the source goes on differently."""
    runner = make_runner(backend)
    for start in range(PAGE + 1, 2 * PAGE) if backend == "torch" else (PAGE + 1, 2 * PAGE - 1):
        cold = Request(0, PROMPT, [PAGES[0], 20, 21], sampling=LOGPROBS)
        done = step(runner, cold.prefill(), admits=[cold.admit])
        other = [*PROMPT[:start], 444, *PROMPT[start + 2 :]]
        answer(runner, Request(1, other, [*PAGES[1:3], 30]), 1)
        for pages in runner._cache.pages:
            pages[PAGES[2], :, :, start - PAGE :] = float("nan")  # must not be read
            pages[[3, 4]] = float("nan")
        hot = Request(2, PROMPT, [PAGES[1], 3, 4], sampling=LOGPROBS, computed=start)
        first = replace(hot.prefill(), copy_from=PAGES[2])
        got = step(runner, first, admits=[hot.admit])
        assert got.tokens == done.tokens, f"{start} tokens cached"
        (want,), (have,) = done.logprobs, got.logprobs
        assert [token for token, _ in have.top] == [token for token, _ in want.top]
        assert [p for _, p in have.top] == pytest.approx([p for _, p in want.top], abs=1e-4)
        for _ in range(3):
            assert step(runner, hot.decode()).tokens == step(runner, cold.decode()).tokens
        free(runner, hot.slot, cold.slot)


@backends
def test_a_page_may_be_copied_in_the_step_that_fills_it(make_runner, backend):
    """Three requests in one step: each goes on from a part of a page that one before it fills."""
    runner = make_runner(backend)
    prompts = [PROMPT, [*PROMPT[: PAGE + 5], 444, 7, 8, 9], [*PROMPT[: PAGE + 3], 333, 7]]
    tables = [[PAGES[0], 20, 21], [PAGES[0], 22, 23], [PAGES[0], 24, 25]]
    alone = []
    for prompt in prompts:
        cold = Request(0, prompt, [26, 27, 28], sampling=LOGPROBS)
        alone.append(step(runner, cold.prefill(), admits=[cold.admit]))
        free(runner, cold.slot)
    for pages in runner._cache.pages:
        pages[20:29] = float("nan")
    requests = [
        Request(slot, prompt, table, sampling=LOGPROBS, computed=computed)
        for slot, (prompt, table, computed) in enumerate(
            zip(prompts, tables, (0, PAGE + 5, PAGE + 3), strict=True)
        )
    ]
    rows = [request.prefill() for request in requests]
    rows[1] = replace(rows[1], copy_from=20, copy_live=True)
    rows[2] = replace(rows[2], copy_from=22, copy_live=True)
    got = step(runner, *rows, admits=[request.admit for request in requests])
    assert unpack(got.tokens) == [unpack(done.tokens)[0] for done in alone]
    for have, done in zip(got.logprobs, alone, strict=True):
        (want,) = done.logprobs
        assert [p for _, p in have.top] == pytest.approx([p for _, p in want.top], abs=1e-4)


@given(data=st.data())
def test_copies_of_a_step_run_one_after_another(data):
    """Against a loop that copies each row's tokens in turn: chains, cycles, shared sources."""
    pages = data.draw(st.permutations(range(NUM_PAGES)), label="targets")
    rows = [
        row(slot, data.draw(st.integers(0, PAGE - 1)), page, data.draw(st.integers(-1, 5)))
        for slot, page in enumerate(pages[: data.draw(st.integers(1, NUM_PAGES))])
    ]
    cache = KVCache(
        num_layers=2,
        num_pages=NUM_PAGES,
        page_size=PAGE,
        num_kv_heads=3,
        head_dim=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for layer in cache.pages:
        layer.copy_(torch.randn(layer.shape))
    wanted = [layer.clone() for layer in cache.pages]
    for each in rows:
        if each.copy_from >= 0:
            (page,) = unpack(each.pages)
            for layer in wanted:
                layer[page, :, :, : each.start] = layer[each.copy_from, :, :, : each.start].clone()
    copies = plan_copies(rows, slots_for(rows), PAGE, [])
    assert not copies.written
    if copies.standing:
        cache.copy(copies.standing)
    for layer, want in zip(cache.pages, wanted, strict=True):
        assert torch.equal(layer, want)


def test_an_example_by_hand():
    """Page 1 gets two tokens of page 0, then page 2 gets three of page 1: two of them are 0's."""
    rows = [row(0, 2, 1, copy_from=0), row(1, 3, 2, copy_from=1), row(2, 5, 3, copy_from=-1)]
    expected = Copies({8: 0, 9: 1, 16: 0, 17: 1, 18: 10}, {})
    assert plan_copies(rows, slots_for(rows), PAGE, []) == expected


def test_what_the_step_writes_is_written_twice_and_the_rest_is_copied():
    """Page 0 has two tokens; row 0 writes two more, which rows 1 and 2 copy."""
    rows = [
        Row(0, 2, pack([1, 1]), pack([0])),
        replace(row(1, 3, 1, copy_from=0), copy_live=True),
        replace(row(2, 4, 2, copy_from=1), copy_live=True),
        row(3, 3, 3, copy_from=0),
    ]
    copies = plan_copies(rows, slots_for(rows), PAGE, [2, 3, 11, 20, 27])
    assert copies.written == {10: 0, 18: 0, 19: 2}
    assert copies.standing == {8: 0, 9: 1, 16: 0, 17: 1, 24: 0, 25: 1, 26: 2}


def test_nothing_is_copied_at_the_border_of_a_page():
    rows = [row(0, 0, 1, copy_from=0)]
    assert plan_copies(rows, slots_for(rows), PAGE, []) == Copies({}, {})


def test_a_copy_without_a_page_is_an_assertion(make_runner):
    request = Request(0, PROMPT, PAGES[:1], computed=PAGE + 1)
    with pytest.raises(AssertionError, match="slot 0 has 1 pages but its row needs 3"):
        step(make_runner(), replace(request.prefill(), copy_from=9), admits=[request.admit])
