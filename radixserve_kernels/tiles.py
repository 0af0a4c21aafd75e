"""The tile table of paged attention: the block sizes each element width and head size runs with.

Plain data, no triton. `block_n` is the step of the reduction over a row's tokens; it belongs to the
width and head size alone, so that both forms add in the same order. The entries are the largest
found that `scripts/compile-kernels` passes without spills on all its targets.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """One compiled shape: `block_m` (token, query head) lanes by `block_n` K/V tokens."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Forms:
    """The two tiles of one entry; both step over K/V by the same `block_n`."""

    extend: Tile
    decode: Tile


def _forms(extend_m: int, block_n: int, extend_warps: int) -> Forms:
    return Forms(Tile(extend_m, block_n, extend_warps, 3), Tile(16, block_n, 4, 3))


# bytes of an element -> head size, padded -> forms
TILES = {
    2: {64: _forms(64, 64, 4), 128: _forms(64, 32, 4), 256: _forms(64, 32, 8)},
    4: {64: _forms(32, 32, 4), 128: _forms(32, 16, 4), 256: _forms(16, 16, 4)},
}
MAX_GROUP = 16
MAX_HEAD_SIZE = 256


def padded(head_size: int) -> int:
    """The power of two that holds `head_size`, at least 16: the least a matrix product takes."""
    return max(16, 1 << (head_size - 1).bit_length())


def tile_for(itemsize: int, head_size: int, group: int, max_new: int) -> Tile:
    """The tile for rows of up to `max_new` new tokens: the decode form if one tile holds a row."""
    forms = TILES[itemsize][max(64, padded(head_size))]
    return forms.decode if max_new * group <= forms.decode.block_m else forms.extend
