"""Log probabilities of prompts: the model's own, whatever was cached, chunked or batched."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

from radixserve.messages import Row, Sampling, Score, Scores, pack, unpack
from radixserve.worker import runner as runners
from radixserve.worker.attention import BACKENDS
from radixserve.worker.scoring import LEAST_AT_ONCE, rows_at_once, score
from tests.worker.requests import GREEDY, Request, answer, free, step
from tests.worker.test_exactness import OTHER, PAGES, PROMPT

BEST = 3
TOLERANCE = 2e-4
backends = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(scope="module")
def expected(checkpoint):
    """Of PROMPT by transformers: [len(PROMPT), vocab], row i of the token behind token i."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    with torch.inference_mode():
        return model(torch.tensor([PROMPT])).logits[0].log_softmax(-1)


def scored(row: Row, prompt: list[int], at: int = 0, best: int = BEST) -> Row:
    """`row` with what follows its tokens from `at` on scored, as far as the prompt goes."""
    count = len(row.tokens) // 4
    wanted = prompt[row.start + at + 1 : row.start + count + 1]
    return replace(row, score=Score(at, pack(wanted), best)) if wanted else row


def columns(scores: Scores) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    logprobs = np.frombuffer(scores.logprobs, dtype=np.float32)
    shape = (len(logprobs), -1)
    return (
        logprobs,
        np.frombuffer(scores.ranks, dtype=np.int32),
        np.frombuffer(scores.best_ids, dtype=np.int32).reshape(shape),
        np.frombuffer(scores.best_logprobs, dtype=np.float32).reshape(shape),
    )


def agrees(scores: Scores, expected: torch.Tensor, first: int) -> int:
    """That they are of PROMPT's tokens from `first` on. Returns the token behind the last."""
    logprobs, ranks, ids, values = columns(scores)
    for i, (logprob, rank) in enumerate(zip(logprobs.tolist(), ranks.tolist(), strict=True)):
        row = expected[first + i - 1]
        assert logprob == pytest.approx(row[PROMPT[first + i]].item(), abs=TOLERANCE)
        assert rank == int((row >= row[PROMPT[first + i]]).sum())
        best = row.topk(BEST)
        assert ids[i].tolist() == best.indices.tolist()
        assert values[i].tolist() == pytest.approx(best.values.tolist(), abs=TOLERANCE)
    return first + len(logprobs)


@backends
@pytest.mark.parametrize("chunk", [1, 3, 8, 19])
def test_they_are_the_models_own_in_any_chunks(make_runner, expected, backend, chunk):
    if backend == "triton" and chunk == 1:
        chunk = 7  # one by one is slow in the interpreter
    runner, request, at = make_runner(backend), Request(0, PROMPT, PAGES), 1
    admits = [request.admit]
    while request.computed < len(PROMPT):
        row = request.prefill(min(chunk, len(PROMPT) - request.computed))
        done = step(
            runner, scored(replace(row, sample=request.computed == 19), PROMPT), admits=admits
        )
        admits = []
        for scores in done.scores:
            at = agrees(scores, expected, at)
    assert at == len(PROMPT)
    assert unpack(done.tokens) == answer(make_runner(backend), Request(0, PROMPT, PAGES), 1)


@backends
def test_behind_a_cached_prefix_and_beside_others(make_runner, expected, backend):
    """Two scored rows, one from its middle on, a plain one and a decode row in one step."""
    runner = make_runner(backend)
    alone = answer(runner, Request(0, OTHER, [60, 9, 33]), 3)
    cold = answer(runner, Request(0, PROMPT, PAGES), 1)
    other = Request(1, OTHER, [60, 9, 33])
    first = unpack(step(runner, other.prefill(), admits=[other.admit]).tokens)
    hot = Request(2, PROMPT, [40, 7, 2, 3], computed=13)
    whole = Request(3, PROMPT, [30, 31, 32])
    plain = Request(4, PROMPT, [34, 35, 36])
    done = step(
        runner,
        other.decode(),
        scored(hot.prefill(), PROMPT, at=2),
        plain.prefill(),
        scored(whole.prefill(), PROMPT, best=BEST),
        admits=[hot.admit, plain.admit, whole.admit],
    )
    assert [agrees(s, expected, f) for s, f in zip(done.scores, (16, 1), strict=True)] == [19, 19]
    tokens = unpack(done.tokens)
    assert first + tokens[:1] == alone[:2] and tokens[1:] == cold * 3


def test_steps_with_scores_are_not_replayed(make_runner):
    runner = make_runner("triton")
    request = Request(0, PROMPT, PAGES)
    before = runner._forward.replayed
    step(runner, scored(request.prefill(5), PROMPT), admits=[request.admit])
    assert runner._forward.replayed == before
    step(runner, request.prefill(5))
    assert runner._forward.replayed == before + 1


def test_each_row_gets_as_many_of_the_best_as_it_asked_for(make_runner):
    runner = make_runner()
    a, b = Request(0, PROMPT, PAGES), Request(1, OTHER, [60, 9])
    rows = scored(a.prefill(), PROMPT, best=0), scored(b.prefill(), OTHER, best=5)
    one, two = step(runner, *rows, admits=[a.admit, b.admit]).scores
    assert one.best_ids == one.best_logprobs == b"" and len(one.logprobs) == 4 * 18
    logprobs, ranks, ids, values = columns(two)
    assert ids.shape == values.shape == (len(OTHER) - 1, 5)
    for row, rank in enumerate(ranks.tolist()):
        if rank <= 5:
            assert (ids[row, rank - 1], values[row, rank - 1]) == (OTHER[row + 1], logprobs[row])


def test_penalties_and_bias_do_not_change_them(make_runner, expected):
    edited = Sampling(seed=1, repetition_penalty=1.7, logit_bias=((PROMPT[3], 50.0),))
    runner = make_runner()
    request = Request(0, PROMPT, PAGES, sampling=edited)
    done = step(runner, scored(request.prefill(), PROMPT), admits=[request.admit])
    assert agrees(done.scores[0], expected, 1) == len(PROMPT)


def test_no_more_logits_live_at_once_than_memory_was_kept_for(make_runner, monkeypatch):
    """A row of logits is the unit of `working_bytes`."""
    most = []
    make = runners.working_bytes

    def working_bytes(spec, *, rows, **rest):
        most.append(rows)
        return make(spec, rows=rows, **rest)

    monkeypatch.setattr(runners, "working_bytes", working_bytes)
    runner = make_runner()
    sizes = []
    logits = runner._decoder.logits
    monkeypatch.setattr(
        runner._decoder, "logits", lambda hidden: sizes.append(len(hidden)) or logits(hidden)
    )
    long = PROMPT * 4
    request = Request(0, long, range(12))
    step(runner, scored(request.prefill(), long), admits=[request.admit])
    assert sum(sizes) == len(long) and max(sizes) == most[0] == LEAST_AT_ONCE
    assert rows_at_once(200) == 200


def test_a_row_without_finite_logits_is_lost_alone():
    hidden = torch.tensor([[1.0, 2.0], [3.0, float("nan")], [0.5, -0.5], [2.0, float("-inf")]])
    asked = [Score(0, pack([1, 0])), Score(0, pack([0, 1]), 9)]
    lost, kept = score(lambda rows: rows.clone(), hidden, asked, at_once=3).messages()
    assert lost is None
    logprobs, ranks, ids, values = columns(kept)
    assert logprobs[1] == -9999.0, "JSON has no infinities"
    assert ranks.tolist() == [1, 2] and ids.tolist() == [[0, 1], [0, 1]]
    assert values[1].tolist() == [0.0, -9999.0], "no more than the vocabulary has"


def test_a_slot_that_was_scored_goes_on_as_any_other(make_runner):
    want = answer(make_runner(), Request(0, PROMPT, PAGES), 4)
    runner = make_runner()
    request = Request(0, PROMPT, PAGES, sampling=GREEDY)
    got = unpack(step(runner, scored(request.prefill(), PROMPT), admits=[request.admit]).tokens)
    for _ in range(3):
        got += unpack(step(runner, request.decode()).tokens)
    free(runner, 0)
    assert got == want
