"""sample against its twin and the worker's own sampler: draws, ties, lost rows, records."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from radixserve.messages import Admit, Sampling
from radixserve.worker.sampling import Grammars
from radixserve.worker.sampling.torch_sampler import TorchSampler
from radixserve.worker.sampling.torch_sampler import uniform as worker_uniform
from radixserve_kernels import reference
from radixserve_kernels import sample as kernel
from radixserve_kernels.edit_logits import edit_logits
from radixserve_kernels.sample import sample
from radixserve_kernels.sampling_params import TILE, Params
from tests.kernels.sampling_rows import (
    VOCABS,
    assert_same_draws,
    generated,
    logits_of,
    params,
    quick_calls,
    step,
)

# The interpreter's numpy warns where a scaled logit leaves float32 for -inf, as it should
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_calls():
        yield


def tokens_of(logits, rows, device):
    return step(logits, rows, device).choose(edit_logits, sample).tolist()


def assert_equals_twin(made):
    expected = made.copy()
    tokens = made.choose(edit_logits, sample)
    wanted = expected.choose(reference.edit_logits, reference.sample)
    assert_same_draws(tokens, wanted, made.logits, made.params)
    if torch.equal(tokens, wanted):
        assert torch.equal(made.counts, expected.counts)
        assert torch.equal(made.last_tokens, expected.last_tokens)
    return tokens


@given(
    vocab=st.sampled_from(VOCABS),
    rows=st.lists(params, min_size=1, max_size=4),
    seed=st.integers(0, 9),
    spread=st.sampled_from([0.1, 1.0, 4.0]),
    levels=st.sampled_from([0, 1, 4]),  # to the unit of the logits; few make many ties
)
@generated
def test_draws_equal_the_twin(vocab, rows, seed, spread, levels, device):
    logits = logits_of(len(rows), vocab, seed, spread)
    if levels:
        logits = (logits * levels).round() / levels
    assert_equals_twin(step(logits, rows, device, seed=seed))


@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_many_tiles(spread, device):
    rows = [
        Params(seed=1),
        Params(seed=2, top_k=5),
        Params(seed=3, top_k=50, top_p=0.9),
        Params(seed=4, top_p=0.9),
        Params(seed=5, top_k=TILE + 900, top_p=0.97),
        Params(seed=6, min_p=0.05, temperature=2.0),
        Params(seed=7, temperature=0.0),
    ]
    assert_equals_twin(step(logits_of(len(rows), 9 * TILE + 5, spread=spread), rows, device))


def test_the_worker_draws_alike(device):
    samplings = [
        Sampling(seed=2**64 - 1),
        Sampling(seed=1, temperature=0.0),
        Sampling(seed=2, top_k=7),
        Sampling(seed=3, top_p=0.9, temperature=1.3),
        Sampling(seed=4, top_k=400, top_p=0.5, min_p=0.01),
        Sampling(seed=5, min_p=0.2),
        Sampling(seed=6, top_p=0.0),
        Sampling(seed=7, top_k=5000, temperature=40.0),
    ]
    slots = range(len(samplings))
    cpu = torch.device("cpu")
    worker = TorchSampler(len(samplings), 600, cpu, Grammars(Path(), 600, ()))
    for slot, sampling in enumerate(samplings):
        worker.admit(Admit(slot, sampling))
    names = ("seed", "temperature", "top_k", "top_p", "min_p")
    for position in range(6):
        rows = [
            Params(position=position, **{name: getattr(s, name) for name in names})
            for s in samplings
        ]
        made = step(logits_of(len(rows), 600, position), rows, device)
        logits = made.logits.to(cpu, copy=True)
        wanted = worker.sample(logits, slots, [position] * len(rows)).tokens.to(device)
        tokens = made.choose(edit_logits, sample)
        assert_same_draws(tokens, wanted, made.logits, made.params)


@triton.jit
def uniform_kernel(SEEDS, POSITIONS, OUT):
    i = tl.program_id(0)
    tl.store(OUT + i, kernel.uniform(tl.load(SEEDS + i), tl.load(POSITIONS + i)))


def test_uniform_numbers_equal_the_workers_bit_for_bit(device):
    generator = np.random.default_rng(0)
    seeds = generator.integers(-(2**63), 2**63, 300)
    positions = generator.integers(0, 2**20, 300)
    seeds[:4], positions[:4] = (0, -1, 2**63 - 1, -(2**63)), (0, 1, 2**20, 0)
    out = torch.zeros(300, dtype=torch.float64, device=device)
    on_device = (torch.from_numpy(a).to(device) for a in (seeds, positions))
    uniform_kernel[(300,)](*on_device, out)
    expected = worker_uniform(seeds.tolist(), positions.tolist())
    assert out.tolist() == expected.tolist()


def test_of_equal_logits_the_lower_ids_stay(device):
    vocab = 2 * TILE
    flat = torch.zeros(12, vocab)
    flat[:, :100] = -1.0

    def drawn(**kept):
        return tokens_of(flat, [Params(seed=i, **kept) for i in range(12)], device)

    assert set(drawn(top_k=3)) == {100, 101, 102}
    assert set(drawn(top_k=1)) == {100} == set(drawn(temperature=1e-5))
    assert len(set(drawn(temperature=1.001e-5))) > 6  # no longer greedy
    wide = drawn(top_k=TILE + 50)
    assert min(wide) >= 100 and TILE < max(wide) < TILE + 150
    # top-p over four equal tokens that top-k left: the third one begins at half of the mass
    assert set(drawn(top_k=4, top_p=0.5)) == {100, 101}
    assert set(drawn(top_k=4, top_p=0.51)) == {100, 101, 102}


def test_extreme_temperatures_stay_numbers(device):
    logits = logits_of(1, 600).repeat(5, 1)
    best = int(logits[0].argmax())
    cold = [Params(seed=1, temperature=t) for t in (1e-30, 1e-5, 1.001e-5)]
    assert tokens_of(logits[:3], cold, device) == [best] * 3
    hot = [Params(seed=seed, temperature=1e6, top_k=k) for seed, k in ((1, 0), (2, 0), (3, 0))]
    assert len({*tokens_of(logits[:3], hot, device)}) == 3
    assert tokens_of(3e38 * logits[:1].sign(), [Params(seed=1, top_p=0.5)], device)[0] >= 0


@pytest.mark.parametrize("only_best", [dict(top_k=1), dict(top_p=0.0), dict(min_p=1.01)])
def test_the_best_always_stays(only_best, device):
    rows = [Params(seed=i, temperature=9.0, **only_best) for i in range(8)]
    logits = logits_of(1, 600).repeat(8, 1)
    assert set(tokens_of(logits, rows, device)) == {int(logits[0].argmax())}


def test_tokens_of_no_weight_are_never_drawn(device):
    logits = torch.full((10, 4099), -INF)
    logits[:, [3, 2050, 4098]] = torch.tensor([1.0, 1.0, 1.0])
    for kept in (dict(), dict(top_k=50), dict(top_p=0.99), dict(top_k=2, min_p=0.1)):
        drawn = tokens_of(logits, [Params(seed=i, **kept) for i in range(10)], device)
        assert set(drawn) == ({3, 2050} if kept.get("top_k") == 2 else {3, 2050, 4098})


def test_rows_without_finite_logits_are_lost_alone(device):
    rows = [Params(seed=i, temperature=i % 2, top_p=0.9, history=True) for i in range(12)]
    logits = logits_of(12, 4099)
    good = tokens_of(logits, rows, device)
    lost = {2: NAN, 3: NAN, 4: INF, 5: INF, 6: -INF, 7: -INF}
    for row, bad in lost.items():
        logits[row, slice(None) if bad == -INF else 4000] = bad
    made = step(logits, rows, device, masked=[(6, 8), (7, 8), (2, 4000), (3, 4000)])
    before = made.counts.clone()
    tokens = made.choose(edit_logits, sample).tolist()
    assert tokens == [-1 if row in lost else token for row, token in enumerate(good)]
    assert made.last_tokens.tolist() == [max(token, 0) for token in reversed(tokens)]
    assert (made.counts != before).any(1).tolist() == [row not in lost for row in range(11, -1, -1)]


def test_rows_that_an_edit_made_infinite_are_lost(device):
    row = Params(history=True, repetition=1e-39)
    made = step(logits_of(2, 600), [row, replace(row, history=False)], device)
    first, second = made.choose(edit_logits, sample).tolist()
    assert first == -1 and second >= 0


def test_a_row_does_not_depend_on_the_batch(device):
    rows = [
        Params(seed=1),
        Params(seed=2, top_k=40, top_p=0.9, history=True),
        Params(seed=3, temperature=0.0),
        Params(seed=4, top_p=0.8, min_p=0.02),
    ]
    made = step(logits_of(4, 4099), rows, device)
    alone = made.copy()
    together = made.choose(edit_logits, sample)
    maxima = alone.edit(edit_logits)
    for row in range(4):
        one = slice(row, row + 1)
        tensors = (alone.logits[one], alone.params[one], maxima[one], alone.counts)
        assert torch.equal(sample(*tensors), together[one])


def test_history_is_kept_only_where_it_is_asked_for(device):
    rows = [Params(temperature=0.0, history=row == 1) for row in range(3)]
    made = step(logits_of(3, 600), rows, device)
    before = made.counts.clone()
    tokens = made.choose(edit_logits, sample).tolist()
    before[1, tokens[1]] += 2
    assert torch.equal(made.counts, before)
    assert made.last_tokens.tolist() == tokens[::-1]


def test_neither_counts_nor_last_tokens(device):
    made = step(logits_of(3, 600), [Params(seed=1, top_k=9)] * 3, device)
    expected = made.copy().choose(edit_logits, sample)
    none = made.counts[:, :0]
    maxima = made.edit(edit_logits)
    assert torch.equal(sample(made.logits, made.params, maxima, none), expected)
    last = torch.full((3,), -9, dtype=torch.int32, device=device)
    assert torch.equal(sample(made.logits, made.params, maxima, none, last), expected)
    assert torch.equal(last, expected.flip(0))


def test_nothing_to_do(device):
    assert step(logits_of(0, 600), [], device).choose(edit_logits, sample).shape == (0,)


NAMES = ("logits", "params", "maxima", "counts", "last_tokens")
WRONG = {
    "logits must be .S, vocab.": dict(logits=lambda x: x[0]),
    "maxima must be .2, 2, 1.": dict(maxima=lambda m: m[:, :1]),
    "maxima must be .* float32": dict(maxima=lambda m: m.double()),
    "last_tokens must be .slots.": dict(last_tokens=lambda t: t.short()),
    "last_tokens must be contiguous": dict(last_tokens=lambda t: t.repeat_interleave(2)[::2]),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_refused(sentence, device):
    made = step(logits_of(2, 40), [Params()] * 2, device)
    maxima = made.edit(edit_logits)
    tensors = (made.logits, made.params, maxima, made.counts, made.last_tokens)
    good = dict(zip(NAMES, tensors, strict=True))
    changed = {name: change(good[name]) for name, change in WRONG[sentence].items()}
    with pytest.raises(ValueError, match=sentence):
        sample(**good | changed)
