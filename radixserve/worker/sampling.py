"""From logits to the next tokens of a step's rows. Called by the runner; keeps no state.

Order: penalties, logit bias, masked stop ids (`edits.py`); then greedy, or temperature, top-k,
top-p over what top-k left, min-p, and one draw. Every draw is the inverse of the distribution at a
number that only (seed, position) decide, and rows never mix, so a seeded request repeats whatever
its batch, its chunks and its preemptions.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from radixserve.messages import Sampling, TokenLogprobs
from radixserve.worker.edits import edit_logits
from radixserve.worker.slots import Slot

GREEDY_BELOW = 1e-5  # temperatures that float32 cannot divide by
CANDIDATES = 256  # a truncated row is first tried with its best tokens, sorted in full if too few
LOGPROB_FLOOR = -9999.0  # JSON has no -Infinity
LOST = -1  # in place of a token: the row has no finite logits


def sample(
    logits: torch.Tensor, slots: Sequence[Slot], positions: Sequence[int]
) -> tuple[list[int], tuple[TokenLogprobs | None, ...]]:
    """Tokens of S rows, and their log probabilities (empty if no row asked).

    `logits` [S, vocab] float32 is overwritten; `positions` [S] are where the tokens will stand.
    Log probabilities are of the model's own logits, before any edit, temperature or truncation.
    """
    lost = _clear_lost(logits)
    asked = [row for row, slot in enumerate(slots) if slot.sampling.top_logprobs >= 0]
    raw = logits[asked].log_softmax(-1) if asked else None
    edit_logits(logits, slots)
    lost += _clear_lost(logits)
    best, tokens = logits.max(-1)
    drawn = [row for row, slot in enumerate(slots) if slot.sampling.temperature > GREEDY_BELOW]
    if drawn:
        index = torch.tensor(drawn, device=logits.device)
        below_best = logits[index] - best[index, None]
        tokens[index] = _draw(
            below_best, [slots[row].sampling for row in drawn], [positions[row] for row in drawn]
        )
    chosen = tokens.tolist()
    logprobs = () if raw is None else _logprobs(raw, asked, chosen, slots)
    for row in lost:
        chosen[row] = LOST
    return chosen, logprobs


def _clear_lost(logits: torch.Tensor) -> list[int]:
    """Rows [S, vocab] whose logits are no finite numbers, which are set to 0.

    A number left the range of its dtype (float16 on some prompts), or weights are damaged. Only
    that request is lost: its neighbours and the server go on.
    """
    bad = ~logits.amax(-1).isfinite()
    logits.masked_fill_(bad[:, None], 0.0)
    return bad.nonzero().flatten().tolist()


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


def _draw(
    below_best: torch.Tensor, samplings: Sequence[Sampling], positions: Sequence[int]
) -> torch.Tensor:
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


def _draw_truncated(
    scaled: torch.Tensor, samplings: Sequence[Sampling], u: torch.Tensor
) -> torch.Tensor:
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
    values: torch.Tensor, total: torch.Tensor, samplings: Sequence[Sampling]
) -> tuple[torch.Tensor, torch.Tensor]:
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


def _pick(ids: torch.Tensor, weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The ids [n] at which the distribution over ids [n, K] reaches u [n].

    In the order of the ids, not of the weights: tokens of almost equal weight would change places
    with the last bits of their logits, and take the draw with them.
    """
    ids, order = ids.sort(-1)
    return ids.gather(1, invert(weights.gather(1, order), u)[:, None])[:, 0]


def invert(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Inverse of the cumulative distribution of weights [n, K] at u [n]; never a zero weight."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cumulative, (u * cumulative[:, -1])[:, None], right=True)[:, 0]


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _logprobs(
    raw: torch.Tensor, asked: Sequence[int], chosen: Sequence[int], slots: Sequence[Slot]
) -> tuple[TokenLogprobs | None, ...]:
    """Per row; None where not asked. `raw` [len(asked), vocab]: log probabilities."""
    raw = raw.clamp_(min=LOGPROB_FLOOR)
    tokens = torch.tensor([chosen[row] for row in asked], device=raw.device)
    of_chosen = raw.gather(1, tokens[:, None])[:, 0].tolist()
    wanted = [slots[row].sampling.top_logprobs for row in asked]
    values, ids = (part.tolist() for part in raw.topk(min(max(wanted), raw.shape[1])))
    found: list[TokenLogprobs | None] = [None] * len(slots)
    for i, row in enumerate(asked):
        top = zip(ids[i][: wanted[i]], values[i], strict=False)
        found[row] = TokenLogprobs(of_chosen[i], tuple(top))
    return tuple(found)
