"""What an attention backend is. Implemented by the other files of this folder, one class each."""

from collections.abc import Callable
from typing import Protocol

import torch

from radixserve.worker.batch import Batch
from radixserve.worker.kv_cache import KVCache

# (layer, q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq, D]
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Attention(Protocol):
    """Causal attention of each row's new tokens over all tokens of that row.

    An `Attend` first writes k and v of all rows into the pages, then computes, and is valid for
    the step it was planned for. In the last layer only the results of the batch's `wanted` tokens
    have a meaning, since nothing looks at the others. What lies past a row's end or outside its
    pages never takes part, whatever it holds.
    """

    def __init__(self, cache: KVCache, scale: float) -> None: ...

    def plan(self, batch: Batch) -> Attend: ...
