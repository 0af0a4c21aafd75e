"""Sampling against plain definitions of each parameter, and independence of the batch."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.messages import Admit, Sampling, TokenLogprobs, pack
from radixserve.worker.sampling import SAMPLERS, Sampler
from radixserve.worker.sampling.torch_sampler import CANDIDATES, invert, uniform

VOCAB = 600  # more than CANDIDATES, so that both ways to truncate are taken
GREEDY = Sampling(seed=0, temperature=0.0)
CPU = torch.device("cpu")
chosen = "torch"


def logits_of(rows: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


class Request(NamedTuple):
    """What a sampler is told of a request."""

    sampling: Sampling
    prompt: Sequence[int] = ()
    answer: Sequence[int] = ()


@pytest.fixture(params=SAMPLERS, scope="module", autouse=True)
def sampler(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs over all samplers."""
    global chosen
    chosen = request.param
    yield


def few(n: int) -> int:
    """Fewer tries in the interpreter, which takes milliseconds for each."""
    return n if chosen == "torch" else n // 20


def make(*requests: Request) -> Sampler:
    """A sampler with the requests in its slots, in order."""
    made = SAMPLERS[chosen](len(requests), VOCAB, CPU)
    for slot, (sampling, prompt, answer) in enumerate(requests):
        made.admit(Admit(slot, sampling, pack([*prompt, *answer]), len(prompt)))
    return made


def sample(
    logits: torch.Tensor, requests: Sequence[Request], positions: Sequence[int]
) -> tuple[list[int], tuple[TokenLogprobs | None, ...]]:
    """What a fresh sampler chooses, as it reaches the scheduler."""
    tokens, logprobs = make(*requests).sample(logits, range(len(requests)), positions)
    assert tokens.dtype == torch.int32
    return tokens.tolist(), () if logprobs is None else logprobs.messages(len(tokens))


def one(logits: torch.Tensor, sampling: Sampling, position: int = 5, **history: list[int]) -> int:
    return sample(logits[None].clone(), [Request(sampling, **history)], [position])[0][0]


def draws(logits: torch.Tensor, sampling: Sampling, n: int = 400) -> list[int]:
    """Tokens at n positions."""
    return sample(logits.repeat(n, 1), [Request(sampling)] * n, range(n))[0]


def truncated(logits: torch.Tensor, s: Sampling) -> torch.Tensor:
    """Plain reference: the probabilities after temperature, top-k, top-p, min-p, in that order."""
    p = (logits.double() / s.temperature).softmax(-1)
    order = p.argsort(descending=True, stable=True)
    kept = order[: s.top_k or VOCAB]
    before = p[kept].cumsum(0) - p[kept]
    inside = (before < s.top_p * p[kept].sum()) & (p[kept] >= s.min_p * p.max())
    inside[0] = True
    kept = kept[inside]
    out = torch.zeros_like(p)
    out[kept] = p[kept] / p[kept].sum()
    return out


samplings = st.builds(
    Sampling,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 5, CANDIDATES, CANDIDATES + 40]),
    top_p=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
)


@given(sampling=samplings, seed=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_draw_is_the_inverse_of_the_truncated_distribution(sampling, seed):
    logits = logits_of(1, seed)[0]
    token = one(logits, sampling, position=9)
    if sampling.temperature == 0.0:
        assert token == logits.argmax()
        return
    p = truncated(logits, sampling)
    cumulative = p.cumsum(0)  # in the order of the ids, cut or not
    u = uniform([sampling.seed], [9])[0]
    assert p[token] > 0
    assert cumulative[token] - p[token] - 1e-5 <= u <= cumulative[token] + 1e-5


@given(st.lists(samplings, min_size=2, max_size=6), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_a_row_does_not_depend_on_the_batch(batch, seed):
    logits = logits_of(len(batch), seed)
    positions = [3 * row + 1 for row in range(len(batch))]
    together, _ = sample(logits.clone(), [Request(s) for s in batch], positions)
    alone = [one(logits[row], s, positions[row]) for row, s in enumerate(batch)]
    assert together == alone


def test_frequencies_follow_the_distribution():
    sampling = Sampling(seed=5, temperature=1.0, top_k=4)
    logits = logits_of(1)[0]
    n = few(4000)
    counts = np.bincount(draws(logits, sampling, n), minlength=VOCAB)
    p = truncated(logits, sampling).numpy()
    assert (np.abs(counts / n - p) < 5 * np.sqrt(p * (1 - p) / n) + 1e-12).all()


def test_no_number_draws_a_weight_of_zero():
    weights = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0]]).repeat(4, 1)
    u = torch.tensor([0.0, 0.49, 0.5, 1 - 2.0**-52], dtype=torch.float64)
    assert invert(weights, u).tolist() == [1, 1, 3, 3]


def test_uniform_numbers():
    u = uniform([123] * 20000, range(20000))
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.01
    assert np.allclose(np.histogram(u, bins=10, range=(0, 1))[0] / 20000, 0.1, atol=0.01)
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.03
    neighbours = uniform(range(20000), [7] * 20000)
    assert abs(np.corrcoef(neighbours[:-1], neighbours[1:])[0, 1]) < 0.03
    assert uniform([-1], [0]) == uniform([2**64 - 1], [0])


def test_seeds_and_positions_matter():
    flat = torch.zeros(VOCAB)
    assert len(set(draws(flat, Sampling(seed=1), 50))) > 30
    assert draws(flat, Sampling(seed=1), 50) != draws(flat, Sampling(seed=2), 50)


def test_top_k_of_one_is_greedy():
    logits = logits_of(1, 4)[0]
    assert set(draws(logits, Sampling(seed=1, temperature=9.0, top_k=1), 50)) == {
        int(logits.argmax())
    }


def test_extreme_temperatures_stay_numbers():
    logits = logits_of(1)[0]
    best = int(logits.argmax())
    assert one(logits, Sampling(seed=1, temperature=1e-30)) == best
    assert one(logits, Sampling(seed=1, temperature=1e-4)) == best
    assert 0 <= one(logits, Sampling(seed=1, temperature=1e6)) < VOCAB


def test_bias_forces_and_bans():
    logits = logits_of(1)[0].clamp(-20, 20)
    best, second = logits.topk(2).indices.tolist()
    forced = Sampling(seed=1, temperature=1.0, logit_bias=((17, 100.0),))
    assert set(draws(logits, forced, 50)) == {17}
    banned = Sampling(seed=1, temperature=0.0, logit_bias=((best, -100.0),))
    assert one(logits, banned) == second


def test_min_tokens_masks_the_stop_ids_until_enough():
    logits = logits_of(1)[0]
    best, second, third = logits.topk(3).indices.tolist()
    sampling = Sampling(seed=0, temperature=0.0, min_tokens=2, stop_ids=(best, second))
    assert one(logits, sampling, prompt=[best], answer=[]) == third
    assert one(logits, sampling, prompt=[best], answer=[4]) == third
    assert one(logits, sampling, prompt=[best], answer=[4, 5]) == best
    everything = Sampling(seed=0, min_tokens=1, stop_ids=tuple(range(VOCAB)))
    assert 0 <= one(logits, everything) < VOCAB


@given(
    prompt=st.lists(st.integers(0, 9), max_size=6),
    answer=st.lists(st.integers(0, 9), max_size=6),
    repetition=st.sampled_from([1.0, 0.7, 1.8]),
    presence=st.sampled_from([0.0, 1.1, -0.4]),
    frequency=st.sampled_from([0.0, 0.9, -0.3]),
)
@settings(max_examples=60, deadline=None)
def test_penalties_equal_the_plain_reference(prompt, answer, repetition, presence, frequency):
    sampling = Sampling(
        seed=0,
        temperature=0.0,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
    )
    logits = logits_of(1, len(prompt) * 7 + len(answer), spread=1.0)[0]
    logits[10:] = -50.0
    edited = logits.tolist()
    for token in {*prompt, *answer}:
        edited[token] = (
            edited[token] / repetition if edited[token] > 0 else edited[token] * repetition
        )
    for token in set(answer):
        edited[token] -= presence + frequency * answer.count(token)
    best = max(range(VOCAB), key=lambda token: edited[token])
    got = one(logits, sampling, prompt=prompt, answer=answer)
    assert math.isclose(edited[got], edited[best], abs_tol=1e-5)


def test_sampled_tokens_count_for_the_next_choice():
    logits = logits_of(1)[0]
    best, second = logits.topk(2).indices.tolist()
    once = Request(Sampling(seed=0, temperature=0.0, frequency_penalty=100.0), prompt=[best])
    sampler = make(Request(GREEDY), once)
    for expected in (best, second):  # the prompt does not count
        assert sampler.sample(logits[None].clone(), [1], [1]).tokens.tolist() == [expected]
        assert sampler.last_tokens.tolist() == [0, expected]


def test_every_sampled_token_counts_towards_min_tokens():
    logits = logits_of(1)[0]
    best, second = logits.topk(2).indices.tolist()
    sampler = make(Request(Sampling(seed=0, temperature=0.0, min_tokens=2, stop_ids=(best,))))
    got = [sampler.sample(logits[None].clone(), [0], [1]).tokens.item() for _ in range(3)]
    assert got == [second, second, best]


def test_a_slot_remembers_nothing_of_its_former_request():
    logits = logits_of(1)[0]
    best = int(logits.argmax())
    sampler = make(Request(Sampling(seed=0, temperature=0.0, presence_penalty=100.0)))
    sampler.sample(logits[None].clone(), [0], [1])
    sampler.free(0)
    with pytest.raises(AssertionError, match="no request was admitted"):
        sampler.sample(logits[None].clone(), [0], [1])
    sampler.admit(Admit(0, Sampling(seed=0, temperature=0.0, presence_penalty=100.0)))
    assert sampler.sample(logits[None].clone(), [0], [1]).tokens.tolist() == [best]


def test_logprobs_are_of_the_raw_logits():
    logits = logits_of(3)
    sampling = Sampling(seed=3, temperature=3.0, top_k=5, logit_bias=((8, 50.0),), top_logprobs=4)
    expected = logits.log_softmax(-1)
    slots = [Request(GREEDY), Request(sampling), Request(Sampling(seed=0, top_logprobs=0))]
    tokens, logprobs = sample(logits.clone(), slots, [1, 2, 3])
    assert logprobs[0] is None
    assert tokens[1] == 8
    assert logprobs[1].chosen == pytest.approx(expected[1, 8].item())
    assert [token for token, _ in logprobs[1].top] == expected[1].topk(4).indices.tolist()
    assert [p for _, p in logprobs[1].top] == pytest.approx(expected[1].topk(4).values.tolist())
    assert logprobs[2].top == ()
    assert logprobs[2].chosen == pytest.approx(expected[2, tokens[2]].item())


def test_logprobs_are_finite():
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, 3] = 1.0
    _, logprobs = sample(logits, [Request(Sampling(seed=0, top_logprobs=3))], [1])
    assert logprobs[0].chosen == 0.0
    assert [p for _, p in logprobs[0].top] == [0.0, -9999.0, -9999.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=3, top_p=0.9, top_logprobs=2)])
def test_a_row_without_finite_logits_is_lost_alone(bad, sampling):
    alone, _ = sample(logits_of(1), [Request(sampling)], [1])
    logits = logits_of(1).repeat(2, 1)
    logits[1, 4] = bad
    tokens, _ = sample(logits, [Request(sampling), Request(sampling)], [1, 1])
    assert tokens == [*alone, -1]


def test_the_last_token_of_a_lost_row_is_in_the_vocabulary():
    sampler = make(Request(GREEDY))
    lost = sampler.sample(torch.full((1, VOCAB), torch.nan), [0], [1])
    assert lost.tokens.tolist() == [-1]
    assert 0 <= sampler.last_tokens.item() < VOCAB


@pytest.mark.filterwarnings("ignore:overflow encountered in divide")
def test_logits_that_an_edit_made_infinite_are_lost_alone():
    extreme = Sampling(seed=0, repetition_penalty=1e-39, top_logprobs=0)
    expected, _ = sample(logits_of(1), [Request(Sampling(seed=0))], [1])
    slots = [Request(extreme, prompt=list(range(VOCAB))), Request(Sampling(seed=0))]
    tokens, logprobs = sample(logits_of(1).repeat(2, 1), slots, [1, 1])
    assert tokens == [-1, *expected]
    assert logprobs[0] is not None


def test_almost_equal_tokens_do_not_change_places():
    sampling = Sampling(seed=1, top_p=0.9)
    for position in range(few(200)):
        logits = torch.zeros(2, VOCAB)
        logits[:, 5:9] = 6.0
        logits[1, 5:9] += torch.tensor([0.0, 3e-6, 1e-6, 2e-6])
        tokens, _ = sample(logits, [Request(sampling)] * 2, [position] * 2)
        assert tokens[0] == tokens[1]


def test_no_rows():
    assert sample(torch.empty(0, VOCAB), [], []) == ([], ())
