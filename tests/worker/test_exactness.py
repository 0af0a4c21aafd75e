"""The same tokens whatever was cached, chunked or batched; nothing leaks from pages or slots."""

import pytest

from radixserve.messages import RunStep, Sampling, pack, unpack
from radixserve.worker.attention import BACKENDS
from tests.worker.requests import GREEDY, Request, answer, free, step

PROMPT = [7, 300, 41, 5, 99, 410, 8, 23, 500, 3, 77, 250, 19, 6, 132, 11, 460, 87, 29]
OTHER = [90, 12, 345, 67, 8, 211, 34, 5, 6, 409, 3]
PAGES = [40, 7, 22, 51, 13]
backends = pytest.mark.parametrize("backend", BACKENDS)


@backends
def test_hot_equals_cold_for_every_split(make_runner, backend):
    runner = make_runner(backend)
    cold = answer(runner, Request(0, PROMPT, PAGES), 4)
    splits = range(1, len(PROMPT)) if backend == "torch" else (1, 7, 8, 9, 16, 18)
    for computed in splits:
        hot = Request(1, PROMPT, PAGES, computed=computed)
        assert answer(runner, hot, 2) == cold[:2], f"{computed} tokens cached"


@backends
def test_chunks_do_not_change_the_answer(make_runner, backend):
    cold = answer(make_runner(backend), Request(0, PROMPT, PAGES), 2)
    for chunk in (1, 7, 8, 9) if backend == "torch" else (7, 8):
        got = answer(make_runner(backend), Request(0, PROMPT, PAGES), 2, chunk=chunk)
        assert got == cold, f"chunks of {chunk}"


@backends
def test_mixed_steps_equal_each_request_alone(make_runner, backend):
    alone = [
        answer(make_runner(backend), Request(0, prompt, PAGES), 6)
        for prompt in (PROMPT, OTHER, PROMPT[:3])
    ]
    runner = make_runner(backend)
    a = Request(2, PROMPT, [1, 2, 3, 4])
    b = Request(0, OTHER, [60, 9, 33])
    c = Request(5, PROMPT[:3], [20, 21])
    got: dict[int, list[int]] = {a.slot: [], b.slot: [], c.slot: []}

    def run(*rows, admits=()):
        tokens = iter(unpack(step(runner, *rows, admits=admits).tokens))
        for row in rows:
            if row.sample:
                got[row.slot].append(next(tokens))
        assert next(tokens, None) is None

    run(a.prefill(5), b.prefill(), admits=[a.admit, b.admit])
    run(b.decode(), a.prefill(6))
    run(a.prefill(), c.prefill(), b.decode(), admits=[c.admit])
    for _ in range(3):
        run(c.decode(), a.decode(), b.decode())
    run(a.decode(), c.decode())
    run(c.decode(), a.decode())
    for slot, expected in zip((a.slot, b.slot, c.slot), alone, strict=True):
        assert got[slot] == expected[: len(got[slot])]


@backends
def test_a_row_may_stand_on_pages_that_the_same_step_fills(make_runner, backend):
    cold = answer(make_runner(backend), Request(0, PROMPT, PAGES), 1)
    runner = make_runner(backend)
    first = Request(0, PROMPT[:16], [40, 7])
    second = Request(1, PROMPT, [40, 7, 22], computed=16)
    done = step(runner, second.prefill(), first.prefill(), admits=[first.admit, second.admit])
    assert unpack(done.tokens)[0] == cold[0]


def test_empty_row_is_the_token_sampled_last(make_runner):
    implicit = answer(make_runner(), Request(0, PROMPT, PAGES), 5)
    runner = make_runner()
    request = Request(0, PROMPT, PAGES)
    tokens = unpack(step(runner, request.prefill(), admits=[request.admit]).tokens)
    for _ in range(4):
        row = request.decode()
        explicit = type(row)(row.slot, row.start, pack(tokens[-1:]))
        tokens += unpack(step(runner, explicit).tokens)
    assert tokens == implicit


def test_a_reused_slot_remembers_nothing(make_runner):
    penalised = Sampling(
        seed=3, temperature=0.8, repetition_penalty=1.5, presence_penalty=1.0, top_logprobs=1
    )
    fresh = answer(make_runner(), Request(0, PROMPT, PAGES), 6)
    runner = make_runner()
    answer(runner, Request(0, OTHER, [1, 2, 3, 4], sampling=penalised), 9)
    assert answer(runner, Request(0, PROMPT, PAGES), 6) == fresh


def test_free_and_admit_of_one_slot_in_one_step(make_runner):
    cold = answer(make_runner(), Request(0, PROMPT, PAGES), 1)
    runner = make_runner()
    old, new = Request(0, OTHER, [1, 2]), Request(0, PROMPT, PAGES)
    step(runner, old.prefill(), admits=[old.admit])
    done = runner.run(
        RunStep(step=9, rows=(new.prefill(),), admits=(new.admit,), frees=(old.slot,))
    )
    assert done.step == 9 and unpack(done.tokens) == cold


def test_a_resumed_request_goes_on_as_if_never_preempted(make_runner):
    sampling = Sampling(seed=11, temperature=1.0, top_p=0.9, repetition_penalty=1.3)
    whole = answer(make_runner(), Request(0, PROMPT, PAGES, sampling=sampling), 8)
    runner = make_runner()
    answer(runner, Request(0, PROMPT, PAGES, sampling=sampling), 3)
    resumed = Request(4, PROMPT + whole[:3], [30, 31, 32, 33], sampling=sampling)
    resumed.admit = type(resumed.admit)(
        resumed.slot, sampling, pack(PROMPT + whole[:3]), len(PROMPT)
    )
    assert answer(runner, resumed, 5) == whole[3:]


def test_a_step_without_samples_gives_no_tokens(make_runner):
    runner = make_runner()
    request = Request(0, PROMPT, PAGES)
    done = step(runner, request.prefill(4), admits=[request.admit])
    assert done.tokens == b"" and done.logprobs == ()


def test_logprobs_come_only_for_rows_that_ask(make_runner):
    runner = make_runner()
    a = Request(0, PROMPT, PAGES, sampling=Sampling(seed=0, temperature=0.0, top_logprobs=2))
    b = Request(1, OTHER, [1, 2], sampling=GREEDY)
    done = step(runner, b.prefill(), a.prefill(), admits=[a.admit, b.admit])
    assert done.logprobs[0] is None
    assert done.logprobs[1].top[0] == (unpack(done.tokens)[1], done.logprobs[1].chosen)
    free(runner, 0)
    assert step(runner, b.decode()).logprobs == ()


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([Request(3, PROMPT, PAGES).prefill()], "no request was admitted"),
        ([Request(0, PROMPT, PAGES[:2]).prefill()], "has 2 pages but its row needs 3"),
        ([Request(0, PROMPT, PAGES).decode()], "no sampled token"),
    ],
)
def test_what_only_a_bug_can_send_is_an_assertion(make_runner, rows, complaint):
    with pytest.raises(AssertionError, match=complaint):
        step(make_runner(), *rows, admits=[Request(0, PROMPT, PAGES).admit])
