"""Small steps are computed from fixed memory, padded, and give what launching one by one gives."""

from itertools import pairwise

import pytest

from radixserve.messages import Sampling, unpack
from radixserve.worker.forward import graph_sizes
from tests.worker.requests import Request, answer, free, step
from tests.worker.test_exactness import OTHER, PAGES, PROMPT

LOGPROBS = Sampling(seed=0, temperature=0.0, top_logprobs=5)


@pytest.mark.parametrize("most", [0, 1, 3, 8, 100, 256, 700])
def test_sizes_end_with_the_most_and_leave_small_gaps(most):
    sizes = graph_sizes(most)
    assert sizes == sorted(set(sizes)) and sizes[-1:] == [most] * (most > 0)
    assert all(b <= max(2 * a, a + 64) for a, b in pairwise(sizes))


def mixed(runner):
    """Logprobs of steps of all kinds; which of them were replayed."""
    requests = [
        Request(0, PROMPT, PAGES, sampling=LOGPROBS),
        Request(3, OTHER, [60, 9, 33], sampling=LOGPROBS),
        Request(5, PROMPT[:3], [20, 21], sampling=LOGPROBS),
    ]
    a, b, c = requests
    found, replayed = [], []

    def run(*rows, admits=()):
        before = runner._forward.replayed
        found.append(step(runner, *rows, admits=admits).logprobs)
        replayed.append(runner._forward.replayed - before)

    run(a.prefill(5), admits=[a.admit])
    run(a.prefill(12), b.prefill(), admits=[b.admit])
    run(b.decode(), a.prefill())
    run(c.prefill(), b.decode(), a.decode(), admits=[c.admit])
    run(a.decode(), c.decode())
    free(runner, 3)
    run(c.decode(), a.decode())
    free(runner, 0, 5)
    return found, replayed


def test_replayed_steps_equal_launched_ones(make_runner):
    graphs, replayed = mixed(make_runner("triton"))
    assert replayed == [1, 0, 1, 1, 1, 1]  # the second step has more tokens than any graph
    plain, replayed = mixed(make_runner("triton", disable_cuda_graph=True))
    assert replayed == [0] * 6
    for mine, other in zip(graphs, plain, strict=True):
        for one, two in zip(mine, other, strict=True):
            assert [token for token, _ in one.top] == [token for token, _ in two.top]
            assert [p for _, p in one.top] == pytest.approx([p for _, p in two.top], abs=1e-4)
    runner = make_runner("torch")
    assert mixed(runner)[1] == [0] * 6, "the torch backend has no fixed shapes"


def test_the_most_tokens_of_a_graph_can_be_chosen(make_runner):
    assert mixed(make_runner("triton", cuda_graph_max_bs=2))[1] == [0, 0, 0, 0, 1, 1]


def test_a_step_that_finds_no_room_is_launched(make_runner, monkeypatch):
    monkeypatch.setattr("radixserve.worker.attention.triton.PART_BYTES", {"cpu": 300})
    runner = make_runner("triton")
    request = Request(0, PROMPT, PAGES)
    tokens = answer(runner, request, 3)
    assert runner._forward.replayed < 4
    monkeypatch.undo()
    assert tokens == answer(make_runner("triton"), Request(0, PROMPT, PAGES), 3)


def test_items_that_find_no_room_are_brought_apart(make_runner, monkeypatch):
    monkeypatch.setattr("radixserve.worker.attention.triton.ITEM_BYTES", {"cpu": 80})
    runner = make_runner("triton")
    a, b = Request(0, PROMPT, PAGES), Request(1, OTHER, [60, 9, 33])
    got = [
        unpack(step(runner, a.prefill(), b.prefill(), admits=[a.admit, b.admit]).tokens),
        unpack(step(runner, a.decode(), b.decode()).tokens),
        unpack(step(runner, a.decode(), b.decode()).tokens),
    ]
    whole = make_runner("triton")
    want = [answer(whole, Request(0, PROMPT, PAGES), 3), answer(whole, Request(1, OTHER, PAGES), 3)]
    assert [list(tokens) for tokens in zip(*got, strict=True)] == want
