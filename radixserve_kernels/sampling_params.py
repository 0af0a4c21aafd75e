"""What the kernels of a step's choice are told of each row, packed for one copy to the device.

Plain numbers and numpy, no triton. The worker packs; `edit_logits` and `sample` read. The fields of
`Params` are the columns, in their order, and named nowhere else.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
from numpy.typing import NDArray

TILE = 2048  # logits per maximum of `edit_logits`, and per step of `sample`
MAX_VOCAB = 2**19


@dataclass(frozen=True, kw_only=True)
class Params:
    """How one row's logits are edited and its token is chosen."""

    slot: int = 0  # the row's place in `counts` and `last_tokens`; no two rows of a step share one
    history: bool = False  # whether `counts` of the slot is read and kept up to date
    repetition: float = 1.0  # divides the positive and multiplies the other logits of seen tokens
    frequency: float = 0.0  # taken from the logits of generated tokens, times their number
    presence: float = 0.0  # taken from the logits of generated tokens
    temperature: float = 1.0  # up to 1e-5: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # 64 bits, signed or unsigned
    position: int = 0  # where the token will stand


COLUMNS = tuple(field.name for field in fields(Params))
FLOATS = tuple(i for i, field in enumerate(fields(Params)) if field.type is float)


def pack(rows: Sequence[Params]) -> NDArray[np.int64]:
    """Params of S rows as int64 [S, columns]: whole numbers as they are, others as float64 bits."""
    packed = np.zeros((len(rows), len(COLUMNS)), dtype=np.int64)
    for row, params in enumerate(rows):
        values = [int(v) % 2**64 if isinstance(v, int) else 0 for v in astuple(params)]
        packed[row] = np.array(values, dtype=np.uint64).view(np.int64)
    for column in FLOATS:
        values = [getattr(params, COLUMNS[column]) for params in rows]
        packed[:, column] = np.array(values, dtype=np.float64).view(np.int64)
    return packed


@dataclass(frozen=True)
class Edits:
    """Single logits to change; those of row s are [start[s], start[s + 1]), ordered by token."""

    start: NDArray[np.int32]  # [S + 1]
    token: NDArray[np.int32]  # [N]
    amount: NDArray[np.float32]  # [N], added; NaN: the token is masked


def pack_edits(
    num_rows: int, bias: Sequence[tuple[int, int, float]], masked: Sequence[tuple[int, int]]
) -> Edits:
    """Edits of `num_rows` rows from (row, token, amount) and (row, token), each in any order.

    Amounts for one token of a row are added one after the other, in float32 and in the order given;
    then masked tokens get the lowest finite number. Raises ValueError on an amount that is NaN.
    """
    if any(math.isnan(amount) for _, _, amount in bias):
        raise ValueError("a logit bias must be a number, not NaN")
    edits = sorted([*bias, *((*pair, math.nan) for pair in masked)], key=lambda edit: edit[:2])
    rows = np.array([row for row, _, _ in edits], dtype=np.int64)
    start = np.searchsorted(rows, np.arange(num_rows + 1))
    return Edits(
        start.astype(np.int32),
        np.array([token for _, token, _ in edits], dtype=np.int32),
        np.array([amount for _, _, amount in edits], dtype=np.float32),
    )
