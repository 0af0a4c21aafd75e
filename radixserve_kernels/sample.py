"""The next token of each row: greedy, or one draw after temperature, top-k, top-p and min-p.

Called by the worker once per step, after `edit_logits`. A program per row, nothing shared: the same
row gives the same token whatever its batch.

No sort. Tokens have a place, a number that orders them best first and equal ones by id; top-k and
top-p are the search for the last place that is kept. A pass counts and weighs the tokens up to each
of WAYS places; tiles whose best token lies past the search are not read. As soon as one tile holds
the tokens that are left, they are gathered there, in the order of their ids.
"""

import torch
import triton
import triton.language as tl

from radixserve_kernels import edit_logits
from radixserve_kernels.sampling_params import COLUMNS, TILE

NUM_COLUMNS = tl.constexpr(len(COLUMNS))
SLOT = tl.constexpr(COLUMNS.index("slot"))
HISTORY = tl.constexpr(COLUMNS.index("history"))
TEMPERATURE = tl.constexpr(COLUMNS.index("temperature"))
TOP_K = tl.constexpr(COLUMNS.index("top_k"))
TOP_P = tl.constexpr(COLUMNS.index("top_p"))
MIN_P = tl.constexpr(COLUMNS.index("min_p"))
SEED = tl.constexpr(COLUMNS.index("seed"))
POSITION = tl.constexpr(COLUMNS.index("position"))

GREEDY_BELOW = tl.constexpr(1e-5)  # temperatures that float32 cannot divide by
WAYS = tl.constexpr(8)
ID_BITS = tl.constexpr(20)  # of a place, the lowest; above them the bits of |scaled logit|
IDS = tl.constexpr(2**20 - 1)
EXPONENT = tl.constexpr(2**43)  # from a place to that of twice the scaled logit
ONE = tl.constexpr(0x3F800000 * 2**20 + IDS.value)  # the last place of a scaled logit of -1
LAST = tl.constexpr(0x43000000 * 2**20 + IDS.value)  # of -128: what lies past it weighs nothing
NOWHERE = tl.constexpr(0x7F800000 * 2**20)  # of minus infinity
OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}


@triton.jit
def sample_kernel(
    LOGITS,  # [S, VOCAB]
    PARAMS,  # [S, NUM_COLUMNS]
    MAXIMA,  # [S, 2, NUM_TILES]
    TOKENS,  # [S]
    GATHERED,  # [S, TILE]
    LAST_TOKENS,  # [slots]; not looked at without HAS_LAST
    COUNTS,  # [slots, VOCAB]; not looked at by rows without history
    VOCAB: tl.constexpr,
    LOGITS_ROW: tl.constexpr,
    TILE: tl.constexpr,
    NUM_TILES: tl.constexpr,
    TILES: tl.constexpr,
    HAS_LAST: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits = LOGITS + row * LOGITS_ROW
    params = PARAMS + row * NUM_COLUMNS
    maxima = MAXIMA + row * 2 * NUM_TILES
    tile = tl.arange(0, TILES)
    before = tl.load(maxima + tile, mask=tile < NUM_TILES, other=-float("inf"))
    best_of = tl.load(maxima + NUM_TILES + tile, mask=tile < NUM_TILES, other=-float("inf"))
    raw_best = tl.max(before, 0)
    best = tl.max(best_of, 0)
    temperature = tl.load(params + TEMPERATURE).to(tl.float64, bitcast=True)
    top_k = tl.load(params + TOP_K)
    top_p = tl.load(params + TOP_P).to(tl.float64, bitcast=True)
    min_p = tl.load(params + MIN_P).to(tl.float64, bitcast=True)
    coldest = tl.full([], GREEDY_BELOW, tl.float64)  # a bare constant is rounded to float32 first
    only_best = (temperature <= coldest) | (top_k == 1) | (top_p <= 0.0) | (min_p > 1.0)
    token = tl.full([], -1, tl.int32)
    if (tl.abs(raw_best) < float("inf")) & (tl.abs(best) < float("inf")):
        if only_best:
            holds_best = tl.min(tl.where(best_of == best, tile, TILES), 0)
            ids = holds_best * TILE + tl.arange(0, TILE)
            x = tl.load(logits + ids, mask=ids < VOCAB, other=-float("inf"))
            token = tl.min(tl.where(x == best, ids, VOCAB), 0)
        else:
            u = uniform(tl.load(params + SEED), tl.load(params + POSITION))
            gathered = GATHERED + row * TILE
            heat = temperature.to(tl.float32)
            token = draw(
                logits, maxima + NUM_TILES, gathered, best, heat, top_k, top_p, min_p, u,
                VOCAB, TILE, NUM_TILES, TILES,
            )  # fmt: skip
    tl.store(TOKENS + row, token)
    slot = tl.load(params + SLOT)
    if HAS_LAST:
        tl.store(LAST_TOKENS + slot, tl.maximum(token, 0).to(LAST_TOKENS.dtype.element_ty))
    if HAS_COUNTS and (tl.load(params + HISTORY) != 0) & (token >= 0):
        count_at = COUNTS + slot * VOCAB + token
        tl.store(count_at, tl.load(count_at) + 2)


@triton.jit
def uniform(seed, position):
    """A number in [0, 1), float64: output `position` of splitmix64 from the mixed seed."""
    gamma = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    state = mixed(seed.to(tl.uint64, bitcast=True))
    state = mixed(state + position.to(tl.uint64, bitcast=True) * gamma)
    return (state >> 12).to(tl.int64).to(tl.float64) * 2.0**-52


@triton.jit
def mixed(z):
    z = (z ^ (z >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    z = (z ^ (z >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    return z ^ (z >> 31)


@triton.jit
def place_of(x, best, temperature, token):
    """The place of a token: by its scaled logit, the best 0, then by its id; int64."""
    scaled = tl.div_rn(x - best, temperature)
    return (tl.abs(scaled).to(tl.int32, bitcast=True).to(tl.int64) << ID_BITS) | token


@triton.jit
def weight_of(place):
    """exp of the scaled logit, in float32 as the softmax of the other backends is."""
    scaled = -(place >> ID_BITS).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.exp(scaled).to(tl.float64)


@triton.jit
def places(LOGITS, GATHERED, num_gathered, tile, best, temperature, VOCAB, TILE):
    """The places [TILE] of a tile's tokens, or of the gathered ones if there are any."""
    lane = tl.arange(0, TILE)
    if num_gathered > 0:
        found = tl.load(GATHERED + lane, mask=lane < num_gathered, other=NOWHERE)
    else:
        token = tile * TILE + lane
        x = tl.load(LOGITS + token, mask=token < VOCAB, other=-float("inf"))
        found = place_of(x, best, temperature, token)
    return found


@triton.jit
def first_bound(MAXIMA, best, temperature, top_k, NUM_TILES, TILES):
    """A place that has `top_k` tokens before it or at it: so many tiles have their best there."""
    tile = tl.arange(0, TILES)
    maximum = tl.load(MAXIMA + tile, mask=tile < NUM_TILES, other=-float("inf"))
    bound = place_of(maximum, best, temperature, IDS)
    num_before = tl.zeros([TILES], tl.int32)
    for start in range(0, TILES, 16):
        other = start + tl.arange(0, 16)
        others = tl.load(MAXIMA + other, mask=other < NUM_TILES, other=-float("inf"))
        is_before = place_of(others, best, temperature, IDS)[None, :] <= bound[:, None]
        num_before += tl.sum((is_before & (other < NUM_TILES)[None, :]).to(tl.int32), 1)
    return tl.min(tl.where(num_before >= top_k, bound, LAST), 0)


@triton.jit
def draw(
    LOGITS,  # [VOCAB], the row
    MAXIMA,  # [NUM_TILES], the row's
    GATHERED,  # [TILE], the row's
    best,
    temperature,
    top_k,
    top_p,
    min_p,
    u,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    NUM_TILES: tl.constexpr,
    TILES: tl.constexpr,
):
    """The token at which the distribution over the kept tokens, by id, reaches u."""
    # Invariant of the search: the last place that is kept lies in (low, high]
    ways = tl.arange(0, WAYS).to(tl.int64)
    low = tl.full([], -1, tl.int64)
    high = tl.full([], LAST, tl.int64)
    num_low = tl.full([], 0, tl.int32)  # tokens up to `low`
    num_gathered = tl.full([], 0, tl.int32)
    by_mass = (top_k <= 0) | (top_k >= VOCAB)
    goal = top_k.to(tl.float64)  # of tokens, or a share of the mass and then that mass
    if not by_mass:
        high = tl.minimum(high, first_bound(MAXIMA, best, temperature, top_k, NUM_TILES, TILES))
    if by_mass:
        goal = top_p
    is_first = True
    going = (not by_mass) | (top_p < 1.0)
    while going:
        step = (high - low + WAYS - 1) // WAYS
        border = tl.where(is_first, ONE + ways * EXPONENT, low + (ways + 1) * step)
        border = tl.minimum(border, high)  # [WAYS]; the last one is `high`
        number = tl.zeros([WAYS], tl.int32)
        mass = tl.zeros([WAYS], tl.float64)
        least = high  # and most: the outermost places of tokens in (low, high]
        most = low
        for tile in range(tl.where(num_gathered > 0, 1, NUM_TILES)):
            tile_best = place_of(tl.load(MAXIMA + tile), best, temperature, 0)
            if (num_gathered > 0) | (tile_best <= high):
                place = places(LOGITS, GATHERED, num_gathered, tile, best, temperature, VOCAB, TILE)
                least = tl.minimum(least, tl.min(tl.where(place > low, place, high), 0))
                most = tl.maximum(most, tl.max(tl.where(place <= high, place, low), 0))
                inside = place[None, :] <= border[:, None]
                number += tl.sum(inside.to(tl.int32), 1)
                mass += tl.sum(tl.where(inside, weight_of(place)[None, :], 0.0), 1)
        if by_mass & is_first:
            goal *= tl.max(mass, 0)
        reached = tl.where(by_mass, mass, number.to(tl.float64)) >= goal
        num_high = tl.min(tl.where(reached, number, tl.max(number, 0)), 0)
        num_low = tl.maximum(num_low, tl.max(tl.where(reached, 0, number), 0))
        high = tl.minimum(most, tl.min(tl.where(reached, border, high), 0))
        low = tl.maximum(least - 1, tl.max(tl.where(reached, low, border), 0))
        is_first = False
        if (num_high - num_low <= 1) | ((not by_mass) & (num_high <= top_k)):
            going = (not by_mass) & (top_p < 1.0)
            by_mass = True  # now of the tokens that top-k left
            is_first = True
            goal = top_p
            low = tl.full([], -1, tl.int64)
            num_low = 0
        if going & (num_gathered == 0) & (num_high <= TILE):
            for tile in range(NUM_TILES):
                if place_of(tl.load(MAXIMA + tile), best, temperature, 0) <= high:
                    place = places(LOGITS, GATHERED, 0, tile, best, temperature, VOCAB, TILE)
                    kept = (place <= high).to(tl.int32)
                    at = num_gathered + tl.cumsum(kept, 0) - 1
                    tl.store(GATHERED + at, place, mask=kept > 0)
                    num_gathered += tl.sum(kept, 0)
            tl.debug_barrier()
    tile_at = tl.arange(0, TILES)
    masses = tl.zeros([TILES], tl.float64)
    for tile in range(tl.where(num_gathered > 0, 1, NUM_TILES)):
        tile_best = place_of(tl.load(MAXIMA + tile), best, temperature, 0)
        if (num_gathered > 0) | (tile_best <= high):
            place = places(LOGITS, GATHERED, num_gathered, tile, best, temperature, VOCAB, TILE)
            kept_mass = tl.sum(kept_weight(place, high, min_p), 0)
            masses = tl.where(tile_at == tile, kept_mass, masses)
    target = u * tl.max(tl.cumsum(masses, 0), 0)
    tile = inverse(masses, target, TILES)
    target -= tl.sum(tl.where(tile_at < tile, masses, 0.0), 0)
    place = places(LOGITS, GATHERED, num_gathered, tile, best, temperature, VOCAB, TILE)
    lane = inverse(kept_weight(place, high, min_p), target, TILE)
    return tl.sum(tl.where(tl.arange(0, TILE) == lane, place & IDS, 0), 0).to(tl.int32)


@triton.jit
def kept_weight(place, high, min_p):
    weight = weight_of(place)
    return tl.where((place <= high) & (weight >= min_p), weight, 0.0)


@triton.jit
def inverse(weights, target, SIZE: tl.constexpr):
    """The first index of weights [SIZE] whose cumulative sum exceeds the target.

    Never one without weight; the last one with weight if rounding leaves the sum below the target.
    """
    at = tl.arange(0, SIZE)
    exceeds = (tl.cumsum(weights, 0) > target) & (weights > 0.0)
    last = tl.max(tl.where(weights > 0.0, at, 0), 0)
    return tl.minimum(tl.min(tl.where(exceeds, at, SIZE), 0), last)


def constants(
    logits: torch.Tensor, *, has_last: bool = True, has_counts: bool = True
) -> dict[str, int]:
    """The kernel's compile-time arguments for logits of this shape and stride (any device)."""
    num_tiles = triton.cdiv(logits.shape[1], TILE)
    return {
        "VOCAB": logits.shape[1],
        "LOGITS_ROW": logits.stride(0),
        "TILE": TILE,
        "NUM_TILES": num_tiles,
        "TILES": max(16, triton.next_power_of_2(num_tiles)),
        "HAS_LAST": has_last,
        "HAS_COUNTS": has_counts,
    }


def sample(
    logits: torch.Tensor,
    params: torch.Tensor,
    maxima: torch.Tensor,
    counts: torch.Tensor,
    last_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token per row, as a new [S] int32; -1 where a row has no finite logits.

    Greedy up to a temperature of 1e-5, the lowest id of equal maxima. Else weights are exp((logit -
    maximum) / temperature) in float32, sums are in float64: top-k; top-p over what top-k left;
    min-p relative to the best, which always stays. Of equal logits at a border the lower ids stay.
    Then the inverse of the distribution, by id, at the number that (seed, position) decide.

    logits, params: as `edit_logits` takes them, and leaves them.
    maxima: [S, 2, tiles] float32, which it returned.
    counts: as `edit_logits` takes it; the token of each row with `history` is counted. [slots, 0]
        will do if no row has history.
    last_tokens: [slots] int32 or int64, gets each row's token, or 0 for a lost one.

    Raises ValueError on shapes, dtypes, strides or devices that do not fit.
    """
    edit_logits.check(logits, params, counts)
    _check(logits, maxima, last_tokens)
    tokens = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    if len(logits) == 0:
        return tokens
    has_last, has_counts = last_tokens is not None, counts.shape[1] > 0
    compiled = constants(logits, has_last=has_last, has_counts=has_counts)
    gathered = torch.empty(len(logits), TILE, dtype=torch.int64, device=logits.device)
    sample_kernel[(len(logits),)](
        logits,
        params,
        maxima,
        tokens,
        gathered,
        tokens if last_tokens is None else last_tokens,
        counts,
        **compiled,
        **OPTIONS,
    )
    return tokens


def _check(logits: torch.Tensor, maxima: torch.Tensor, last_tokens: torch.Tensor | None) -> None:
    shape = (len(logits), 2, triton.cdiv(logits.shape[1], TILE))
    if maxima.shape != shape or maxima.dtype != torch.float32 or not maxima.is_contiguous():
        raise ValueError(
            f"maxima must be {shape} float32, contiguous, is {tuple(maxima.shape)} {maxima.dtype}"
        )
    if last_tokens is None:
        return
    if last_tokens.dtype not in (torch.int32, torch.int64) or last_tokens.dim() != 1:
        raise ValueError(
            f"last_tokens must be [slots] int32 or int64, is {tuple(last_tokens.shape)} "
            f"{last_tokens.dtype}"
        )
    if last_tokens.device != logits.device or not last_tokens.is_contiguous():
        raise ValueError("last_tokens must be contiguous and on the device of the logits")
