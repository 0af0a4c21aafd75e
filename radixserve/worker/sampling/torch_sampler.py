"""The sampler made of torch operators, with its state on the host: the real one on a CPU.

On a GPU greedy rows wait for nothing; rows that draw, or have penalties or a bias, wait for the
device.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixserve.messages import Admit, Sampling
from radixserve.worker.sampling.edits import edit_logits
from radixserve.worker.sampling.grammar import Grammars, MaskedRows
from radixserve.worker.sampling.sampler import BARRED, LOGPROB_FLOOR, LOST, Logprobs, Sampled
from radixserve.worker.sampling.state import SlotState, state_of
from radixserve.worker.upload import upload

GREEDY_BELOW = 1e-5  # temperatures that float32 cannot divide by
CANDIDATES = 256  # a truncated row is first tried with its best tokens, sorted in full if too few


class TorchSampler:
    """The `Sampler` made of torch operators."""

    last_tokens: Tensor

    def __init__(
        self, max_slots: int, vocab_size: int, device: torch.device, grammars: Grammars
    ) -> None:
        self.last_tokens = torch.zeros(max_slots, dtype=torch.int32, device=device)
        self._on_host = self.last_tokens.numpy() if device.type == "cpu" else None
        self._states: list[SlotState | None] = [None] * max_slots
        self._masked = MaskedRows(grammars, device)

    def admit(self, admit: Admit) -> None:
        self._masked.admit(admit)
        self._states[admit.slot] = state_of(admit)

    def free(self, slot: int) -> None:
        self._states[slot] = None
        self._masked.free(slot)

    def sample(self, logits: Tensor, slots: Sequence[int], positions: Sequence[int]) -> Sampled:
        states = [self._state(slot) for slot in slots]
        best, tokens, lost = _best(logits)
        asked = [row for row, state in enumerate(states) if state.sampling.top_logprobs >= 0]
        raw = _take(logits, asked).log_softmax(-1) if asked else None
        barred = self._masked.mask(logits, slots)
        if edit_logits(logits, states) or self._masked.follows(slots):
            best, tokens, now_lost = _best(logits)
            lost |= now_lost
        drawn = [row for row, s in enumerate(states) if s.sampling.temperature > GREEDY_BELOW]
        if drawn:
            index = torch.tensor(drawn, device=logits.device)
            tokens[index] = _draw(
                logits[index] - best[index, None],
                [states[row].sampling for row in drawn],
                [positions[row] for row in drawn],
            )
        self._record(slots, states, tokens)
        logprobs = None if raw is None else _logprobs(raw, asked, tokens, states)
        chosen = tokens.masked_fill(lost, LOST).int()
        if barred:
            chosen[barred] = BARRED
        self._masked.choose(chosen, slots)
        return Sampled(chosen, logprobs)

    def _state(self, slot: int) -> SlotState:
        state = self._states[slot]
        assert state is not None, f"slot {slot} samples but no request was admitted to it"
        return state

    def _record(self, slots: Sequence[int], states: Sequence[SlotState], tokens: Tensor) -> None:
        if self._on_host is not None:
            self._on_host[list(slots)] = tokens.numpy()
        else:
            index = upload({"slots": np.array(slots)}, tokens.device)["slots"]
            self.last_tokens.index_copy_(0, index.long(), tokens.int())
        for state in states:
            state.generated += 1
        counting = [row for row, state in enumerate(states) if state.sampling.needs_history]
        if counting:
            for row, token in zip(counting, _take(tokens, counting).tolist(), strict=True):
                states[row].record(token)


def _best(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logit of each row of [S, vocab], its token, and whether the row is lost: [S].

    A row is lost whose logits are no finite numbers, and they are set to 0. A number left the range
    of its dtype (float16 on some prompts), or weights are damaged. Only that request is lost: its
    neighbours and the server go on.
    """
    if logits.device.type == "cpu":  # twenty times as fast as torch's, which is not vectorised
        numbers = logits.numpy()
        found = numbers.argmax(-1)
        largest = numbers[np.arange(len(found)), found]
        is_lost = ~np.isfinite(largest)
        best, tokens, lost = map(torch.from_numpy, (largest, found, is_lost))
        if not is_lost.any():
            return best, tokens, lost
    else:  # without asking whether any is lost, which would wait
        best, tokens = logits.max(-1)
        lost = ~best.isfinite()
    logits.masked_fill_(lost[:, None], 0.0)
    return best.masked_fill(lost, 0.0), tokens.masked_fill(lost, 0), lost


def _take(rows: Tensor, wanted: Sequence[int]) -> Tensor:
    index = upload({"rows": np.array(wanted)}, rows.device)["rows"]
    return rows.index_select(0, index)


def uniform(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """One number in [0, 1) per (64-bit seed, position), float64.

    Output `position` of the splitmix64 generator (Steele, Lea, Flood: Fast splittable pseudorandom
    number generators, OOPSLA 2014) whose state is the mixed seed.
    """
    state = _mix(np.array([seed % 2**64 for seed in seeds], dtype=np.uint64))
    gamma = np.uint64(0x9E3779B97F4A7C15)
    state += np.array(positions, dtype=np.uint64) * gamma
    # 52 bits: the product with a total is below the total, also when rounded to float64
    return (_mix(state) >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _draw(below_best: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> Tensor:
    """Tokens [n] int64 for logits [n, vocab] whose maximum is 0; overwrites them."""
    scaled = below_best.div_(_column([s.temperature for s in samplings], below_best))
    u = torch.from_numpy(uniform([s.seed for s in samplings], positions)).to(scaled.device)
    tokens = torch.empty(len(samplings), dtype=torch.int64, device=scaled.device)
    whole: list[int] = []
    cut: list[int] = []
    for row, s in enumerate(samplings):
        (cut if s.top_k or s.top_p < 1.0 or s.min_p > 0.0 else whole).append(row)
    if whole:
        tokens[whole] = invert(scaled[whole].exp(), u[whole])
    if cut:
        tokens[cut] = _draw_truncated(scaled[cut], [samplings[row] for row in cut], u[cut])
    return tokens


def _draw_truncated(scaled: Tensor, samplings: Sequence[Sampling], u: Tensor) -> Tensor:
    """As `_draw`, with top-k, top-p and min-p. Sorts only rows that need it."""
    total = scaled.exp().sum(-1, dtype=torch.float64)
    candidates = min(CANDIDATES, scaled.shape[1])
    values, ids = scaled.topk(candidates)
    weights, complete = _truncate(values, total, samplings)
    tokens = _pick(ids, weights, u)
    if not complete.all():
        rest = (~complete).nonzero().flatten()
        values, ids = scaled[rest].sort(descending=True, stable=True)
        weights, _ = _truncate(values, total[rest], [samplings[row] for row in rest.tolist()])
        tokens[rest] = _pick(ids, weights, u[rest])
    return tokens


def _truncate(
    values: Tensor, total: Tensor, samplings: Sequence[Sampling]
) -> tuple[Tensor, Tensor]:
    """Weights [n, K] of the best K tokens, zero where cut off, and whether K were enough [n].

    `values` [n, K]: scaled logits, best (0) first; `total` [n]: weight of the whole vocabulary.
    """
    weights = values.exp().double()
    before = weights.cumsum(-1) - weights
    ranks = torch.arange(values.shape[1], device=values.device)
    top_k = _column([s.top_k for s in samplings], ranks)
    keep = (ranks < top_k) | (top_k == 0)
    mass = torch.where(top_k == 0, total[:, None], (weights * keep).sum(-1, keepdim=True))
    keep &= before < _column([s.top_p for s in samplings], weights) * mass
    keep &= weights >= _column([s.min_p for s in samplings], weights)
    keep[:, 0] = True
    complete = torch.where(top_k == 0, ~keep[:, -1:], top_k <= len(ranks))[:, 0]
    return weights * keep, complete


def _pick(ids: Tensor, weights: Tensor, u: Tensor) -> Tensor:
    """The ids [n] at which the distribution over ids [n, K] reaches u [n].

    In the order of the ids, not of the weights: tokens of almost equal weight would change places
    with the last bits of their logits, and take the draw with them.
    """
    ids, order = ids.sort(-1)
    return ids.gather(1, invert(weights.gather(1, order), u)[:, None])[:, 0]


def invert(weights: Tensor, u: Tensor) -> Tensor:
    """Inverse of the cumulative distribution of weights [n, K] at u [n]; never a zero weight."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cumulative, (u * cumulative[:, -1])[:, None], right=True)[:, 0]


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _logprobs(
    raw: Tensor, asked: Sequence[int], tokens: Tensor, states: Sequence[SlotState]
) -> Logprobs:
    """`raw` [len(asked), vocab]: log probabilities; `tokens` [S]: what all rows chose."""
    raw = raw.clamp_(min=LOGPROB_FLOOR)
    wanted = [min(states[row].sampling.top_logprobs, raw.shape[1]) for row in asked]
    values, ids = raw.topk(max(wanted))
    chosen = raw.gather(1, _take(tokens, asked)[:, None])[:, 0]
    return Logprobs(asked, wanted, chosen, ids, values)
