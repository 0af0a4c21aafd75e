"""What an attention backend is. Implemented by the other files of this folder, one class each."""

from collections.abc import Callable
from typing import ClassVar, Protocol

import torch

from radixserve.worker.batch import Batch, Repeats
from radixserve.worker.kv_cache import KVCache

# (layer, qk [T, Hq + Hkv, D], v [T, Hkv, D], turn [T, 1, D/2] complex64) -> [T, Hq, D]
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Attention(Protocol):
    """Causal attention of each row's new tokens over all tokens of that row.

    An `Attend` first rotates queries and keys by `turn` (as `models.rotary.rotate`, in place if it
    likes), then writes k and v of all rows into the pages, then computes, and is valid for the
    step it was planned for. In the last layer only the results of the batch's `wanted` tokens
    have a meaning, since nothing looks at the others. What lies past a row's end or outside its
    pages never takes part, whatever it holds.
    """

    operators: ClassVar[str]  # which of `models.operators.OPERATORS` the decoder uses with it
    deterministic_operators: ClassVar[str]  # those of --enable-deterministic-inference; "": none
    sampler: ClassVar[str]  # which of `worker.sampling.SAMPLERS` goes with it
    kv_cache_dtypes: ClassVar[tuple[str, ...]]  # values of --kv-cache-dtype that it can do

    def __init__(self, cache: KVCache, scale: float) -> None: ...

    def plan(self, batch: Batch, repeats: Repeats | None = None) -> Attend:
        """`repeats`: which K/V to write to a second place, before any row attends."""
        ...
