"""What `edit_logits` and `sample` compute, in plain torch; part of `reference.py`.

Same names, arguments and results as the kernels. Row by row, sums in float64, everything sorted.
"""

import math

import torch

from radixserve_kernels.sampling_params import COLUMNS, FLOATS, TILE, Params

GREEDY_BELOW = 1e-5
MASK = 2**64 - 1


def unpack(params: torch.Tensor) -> list[Params]:
    """The rows that `sampling_params.pack` made."""
    whole, floats = params.tolist(), params.view(torch.float64).tolist()
    return [
        Params(
            **{
                name: floats[row][column] if column in FLOATS else whole[row][column]
                for column, name in enumerate(COLUMNS)
            }
        )
        for row in range(len(params))
    ]


def edit_logits(
    logits: torch.Tensor,
    params: torch.Tensor,
    counts: torch.Tensor,
    edit_start: torch.Tensor,
    edit_token: torch.Tensor,
    edit_amount: torch.Tensor,
) -> torch.Tensor:
    """Repetition, frequency and presence penalty, then bias, then masks; in place.

    Arguments and result as in `radixserve_kernels.edit_logits`.
    """
    before = _maxima(logits)
    start = edit_start.tolist()
    for row, wanted in enumerate(unpack(params)):
        if wanted.history:
            _penalise(logits[row], counts[wanted.slot], wanted)
        for edit in range(start[row], start[row + 1]):
            token, amount = int(edit_token[edit]), edit_amount[edit]
            if math.isnan(amount):
                logits[row, token] = torch.finfo(torch.float32).min
            else:
                logits[row, token] += amount
    return torch.stack([before, _maxima(logits)], 1)


def _penalise(row: torch.Tensor, counts: torch.Tensor, wanted: Params) -> None:
    factor = torch.tensor(wanted.repetition, dtype=torch.float32, device=row.device)
    repeated = torch.where(row > 0, row / factor, row * factor)
    generated = (counts // 2).double()
    penalty = wanted.frequency * generated + wanted.presence * (generated > 0).double()
    row.copy_(torch.where(counts > 0, repeated - penalty.float(), row))


def _maxima(logits: torch.Tensor) -> torch.Tensor:
    tiles = logits.nan_to_num(torch.inf, torch.inf, -torch.inf).split(TILE, 1)
    return torch.stack([tile.amax(1) for tile in tiles], 1)


def sample(
    logits: torch.Tensor,
    params: torch.Tensor,
    maxima: torch.Tensor,
    counts: torch.Tensor,
    last_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token per row, [S] int32; -1 where a row has no finite logits.

    Arguments as in `radixserve_kernels.sample`.
    """
    chosen = []
    for row, wanted in enumerate(unpack(params)):
        lost = not maxima[row].amax(1).isfinite().all()
        token = -1 if lost else _choose(logits[row], wanted)
        chosen.append(token)
        if last_tokens is not None:
            last_tokens[wanted.slot] = max(token, 0)
        if wanted.history and not lost:
            counts[wanted.slot, token] += 2
    return torch.tensor(chosen, dtype=torch.int32, device=logits.device)


def _choose(row: torch.Tensor, wanted: Params) -> int:
    if wanted.temperature <= GREEDY_BELOW:
        return int((row == row.max()).nonzero()[0])
    cumulative = weights(row, wanted).cumsum(0)
    target = uniform(wanted.seed, wanted.position) * cumulative[-1]
    return int(torch.searchsorted(cumulative, target, right=True))


def weights(row: torch.Tensor, wanted: Params) -> torch.Tensor:
    """Weights [vocab] float64 of a row's tokens relative to the best, 0 where cut off."""
    temperature = torch.tensor(wanted.temperature, dtype=torch.float32, device=row.device)
    scaled = (row - row.max()) / temperature
    order = scaled.argsort(descending=True, stable=True)
    weight = scaled.exp().double()[order]
    if wanted.top_k:
        weight[wanted.top_k :] = 0.0
    before = weight.cumsum(0) - weight
    inside = (before < wanted.top_p * weight.sum()) & (weight >= wanted.min_p)
    inside[0] = True
    return torch.zeros_like(weight).index_put_((order,), weight * inside)


def uniform(seed: int, position: int) -> float:
    """One number in [0, 1) for (64-bit seed, position).

    Output `position` of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
    generators, OOPSLA 2014) whose state is the mixed seed.
    """
    return (_mix(_mix(seed & MASK) + position * 0x9E3779B97F4A7C15) >> 12) * 2.0**-52


def _mix(z: int) -> int:
    z &= MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)
