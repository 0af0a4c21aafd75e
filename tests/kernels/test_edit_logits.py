"""edit_logits against its twin and the worker's own edits: bits, order, lost rows, packing."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixserve.messages import Admit, Sampling
from radixserve.messages import pack as pack_ids
from radixserve.worker.sampling import edits as worker_edits
from radixserve.worker.sampling.state import state_of
from radixserve_kernels import reference, reference_sampling
from radixserve_kernels.edit_logits import edit_logits
from radixserve_kernels.sampling_params import COLUMNS, TILE, Params, pack, pack_edits
from tests.kernels.sampling_rows import VOCABS, generated, logits_of, params, step

INF, NAN = float("inf"), float("nan")
LOWEST = torch.finfo(torch.float32).min
PENALTIES = Params(history=True, repetition=1.8, frequency=0.9, presence=-0.4)


def assert_equals_twin(made):
    expected = made.copy()
    maxima, wanted = made.edit(edit_logits), expected.edit(reference.edit_logits)
    assert torch.equal(made.logits.nan_to_num(7e7), expected.logits.nan_to_num(7e7))
    assert torch.equal(maxima, wanted)
    assert torch.equal(made.counts, expected.counts)


@st.composite
def steps(draw):
    """Rows, logits some of which are no numbers, and edits some of which meet."""
    vocab = draw(st.sampled_from(VOCABS))
    rows = draw(st.lists(params, min_size=1, max_size=4))
    logits = logits_of(len(rows), vocab, draw(st.integers(0, 9)))
    at = st.tuples(st.integers(0, len(rows) - 1), st.integers(0, vocab - 1))
    for row, token in draw(st.lists(at, max_size=2)):
        logits[row, token] = draw(st.sampled_from([INF, -INF, NAN]))
    bias = draw(st.lists(st.tuples(at, st.floats(-100, 100, width=32)), max_size=8))
    twice = bias + draw(st.permutations(bias))
    return logits, rows, [(*place, amount) for place, amount in twice], draw(st.lists(at))


@given(made=steps())
@generated
def test_bits_equal_the_twin(made, device):
    logits, rows, bias, masked = made
    assert_equals_twin(step(logits, rows, device, bias=bias, masked=masked))


def test_more_edits_than_are_looked_through_at_once(device):
    tokens = range(0, 4099, 7)
    bias = [(row, token, token / 64) for row in (0, 2) for token in tokens]
    masked = [(0, token) for token in range(300)]
    made = step(logits_of(3, 4099), [PENALTIES, Params(), Params()], device, bias=bias)
    assert_equals_twin(made)
    assert_equals_twin(step(logits_of(3, 4099), [Params()] * 3, device, bias=bias, masked=masked))


def test_the_worker_edits_alike(device):
    vocab = 600
    samplings = [
        Sampling(1, repetition_penalty=1.3, frequency_penalty=0.37, presence_penalty=0.1),
        Sampling(2, logit_bias=((5, 0.1), (7, -3.3), (5, 0.2)), min_tokens=9, stop_ids=(5, 11)),
        Sampling(3, repetition_penalty=0.7, logit_bias=((3, 1e8), (3, 1.0), (3, -1e8))),
    ]
    prompt, answer = [3, 4, 5, 3], [5, 9, 9, 9]
    counts = torch.zeros(3, vocab, dtype=torch.int32)
    for token in prompt:
        counts[:, token] |= 1
    for token in answer:
        counts[:, token] += 2
    history = pack_ids(prompt + answer)
    states = [state_of(Admit(0, sampling, history, len(prompt))) for sampling in samplings]
    made = step(
        logits_of(3, vocab),
        [
            Params(
                history=s.needs_history,
                repetition=s.repetition_penalty,
                frequency=s.frequency_penalty,
                presence=s.presence_penalty,
            )
            for s in samplings
        ],
        device,
        bias=[(row, *pair) for row, s in enumerate(samplings) for pair in s.logit_bias],
        masked=[(1, 5), (1, 11)],
    )
    made.counts = counts.to(device)
    expected = made.logits.clone()
    worker_edits.edit_logits(expected, states)
    made.edit(edit_logits)
    assert torch.equal(made.logits, expected)


def test_order_and_arithmetic(device):
    logits = torch.tensor([[4.0, -4.0, 4.0, 4.0, 1.0]], device=device)
    rows = [Params(history=True, repetition=2.0, frequency=0.5, presence=1.0)]
    bias = [(0, 2, 10.0), (0, 4, 1e8), (0, 4, 1.0), (0, 4, -1e8)]
    made = step(logits, rows, device, bias=bias, masked=[(0, 3)])
    made.counts = torch.tensor([[1, 1, 5, 4, 0]], dtype=torch.int32, device=device)
    made.edit(edit_logits)
    assert made.logits.tolist() == [[2.0, -8.0, 2.0 - 2.0 + 10.0, LOWEST, 0.0]]


def test_rows_without_history_look_at_no_counts(device):
    made = step(logits_of(2, 600), [replace(PENALTIES, history=False)] * 2, device)
    kept = made.logits.clone()
    made.counts = made.counts[:, :0]
    made.edit(edit_logits)
    assert torch.equal(made.logits, kept)


def test_maxima_show_rows_that_are_lost(device):
    logits = torch.zeros(5, TILE + 1)
    logits[1, TILE] = NAN
    logits[2, 3] = INF
    logits[3] = -INF
    logits[4, :TILE] = -INF
    tokens = [(row, token) for row in (1, 3) for token in (3, TILE)]
    maxima = step(logits, [Params()] * 5, device, masked=tokens).edit(edit_logits)
    before = [[0.0, 0.0], [0.0, INF], [INF, 0.0], [-INF, -INF], [-INF, 0.0]]
    after = [[0.0, 0.0], [0.0, LOWEST], [INF, 0.0], [LOWEST, LOWEST], [-INF, 0.0]]
    assert maxima.tolist() == [list(pair) for pair in zip(before, after, strict=True)]


def test_bits_do_not_depend_on_the_batch(device):
    rows = [PENALTIES, Params(), replace(PENALTIES, repetition=0.5), PENALTIES]
    made = step(logits_of(4, 600), rows, device, bias=[(2, 8, 1.5), (3, 8, -1.0)])
    alone = made.copy()
    maxima = made.edit(edit_logits)
    start, token, amount = alone.edits
    for row in range(4):
        one = slice(row, row + 1)
        part = slice(int(start[row]), int(start[row + 1]))
        mine = (start[row : row + 2] - start[row], token[part].clone(), amount[part].clone())
        found = edit_logits(alone.logits[one], alone.params[one], alone.counts, *mine)
        assert torch.equal(found[0], maxima[row])
    assert torch.equal(alone.logits, made.logits)


def test_rows_that_lie_apart(device):
    memory = torch.full((3, 700), NAN, device=device)
    made = step(logits_of(3, 600), [PENALTIES] * 3, device, bias=[(1, 599, 2.0)])
    expected = made.copy()
    memory[:, 50:650] = made.logits
    made.logits = memory[:, 50:650]
    maxima = made.edit(edit_logits)
    assert torch.equal(maxima, expected.edit(edit_logits))
    assert torch.equal(made.logits, expected.logits)
    assert memory[:, :50].isnan().all() and memory[:, 650:].isnan().all()


def test_packing_keeps_every_number():
    rows = [
        Params(),
        Params(slot=7, history=True, repetition=1.1, frequency=-0.1, presence=0.3, top_k=9),
        Params(temperature=0.7, top_p=0.9, min_p=1e-300, seed=2**64 - 5, position=2**40),
        Params(repetition=2, seed=-5),
    ]
    packed = pack(rows)
    assert packed.shape == (4, len(COLUMNS))
    found = reference_sampling.unpack(torch.from_numpy(packed))
    assert found == [*rows[:2], replace(rows[2], seed=-5), rows[3]]
    assert pack([]).shape == (0, len(COLUMNS))


def test_edits_are_packed_by_row_and_token():
    edits = pack_edits(4, [(2, 9, 1.0), (0, 3, 2.0), (2, 1, 3.0), (2, 9, 4.0)], [(2, 9), (3, 0)])
    assert edits.start.tolist() == [0, 1, 1, 5, 6]
    assert edits.token.tolist() == [3, 1, 9, 9, 9, 0]
    assert edits.amount.tolist()[:4] == [2.0, 3.0, 1.0, 4.0]
    assert all(amount != amount for amount in edits.amount[4:])
    with pytest.raises(ValueError, match="not NaN"):
        pack_edits(1, [(0, 0, NAN)], [])


def test_nothing_to_do(device):
    made = step(logits_of(0, 600), [], device)
    assert made.edit(edit_logits).shape == (0, 2, 1)


NAMES = ("logits", "params", "counts", "edit_start", "edit_token", "edit_amount")
WRONG = {
    "logits must be .S, vocab.": dict(logits=lambda x: x[0]),
    "vocab from 1 to": dict(logits=lambda x: x.new_zeros(2, 2**19 + 1)),
    "logits must be float32": dict(logits=lambda x: x.double()),
    "last stride of 1": dict(logits=lambda x: x.t().contiguous().t()),
    "params must be 2 x": dict(params=lambda p: p[:1]),
    "int64 numbers": dict(params=lambda p: p.int()),
    "counts must be .slots, 40. or": dict(counts=lambda c: c[:, :-1]),
    "counts must be int32": dict(counts=lambda c: c.long()),
    "params and counts must be contiguous": dict(counts=lambda c: c.t().contiguous().t()),
    "edits must be .3., .N. and .N.": dict(edit_start=lambda e: e[:-1]),
    "edit_amount float32": dict(edit_amount=lambda e: e.double()),
    "edits must be contiguous": dict(edit_token=lambda e: e.repeat_interleave(2)[::2]),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_refused(sentence, device):
    made = step(logits_of(2, 40), [Params()] * 2, device, bias=[(0, 1, 1.0), (1, 2, 1.0)])
    good = dict(zip(NAMES, (made.logits, made.params, made.counts, *made.edits), strict=True))
    changed = {name: change(good[name]) for name, change in WRONG[sentence].items()}
    with pytest.raises(ValueError, match=sentence):
        edit_logits(**good | changed)
