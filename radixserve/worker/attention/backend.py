"""What an attention backend is. Implemented by the other files of this folder, one class each."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import numpy as np
import torch
from msgspec import Struct

from radixserve.models.model import Attend
from radixserve.worker.batch import Batch, HostBatch, Repeats
from radixserve.worker.kv_cache import KVCache
from radixserve_kernels.attention_options import Options


class Setting(Struct, frozen=True):
    """What is the same for all steps."""

    cache: KVCache
    dtype: torch.dtype  # of queries, and of K/V unless the cache holds codes
    page_table: np.ndarray  # [max_slots, max_pages] int32, the slots' own
    num_heads: int  # query heads
    options: Sequence[Options]  # what each layer wants
    deterministic: bool = False  # the same bits whatever the batch, on any GPU


class StepPlan(Protocol):
    """Who computes what in one step, known before anything of it is on the device."""

    def bind(self, batch: Batch, repeats: Repeats | None = None) -> Attend:
        """`repeats`: which K/V to write to a second place, before any row attends."""
        ...

    def fixed(self, num_tokens: int) -> Mapping[str, np.ndarray] | None:
        """Arrays of `Attention.fixed_shapes` for this step, None if it does not fit them.

        What else `Attention.bind_fixed` reads is brought to the device.
        """
        ...


class Attention(Protocol):
    """Causal attention of each row's new tokens over all tokens of that row, or a layer's window.

    An `Attend` first rotates queries and keys by `turn` (as `models.rotary.rotate`, in place if it
    likes; None: they are rotated), then writes k and v of all rows into the pages, then computes,
    and is valid for the step it was planned for. In the last layer only the results of the batch's
    `wanted` tokens have a meaning, since nothing looks at the others: these are finite. What lies
    past a row's end or outside its pages never takes part, whatever it holds.
    """

    operators: ClassVar[str]  # which of `models.operators.OPERATORS` the decoder uses with it
    deterministic_operators: ClassVar[str]  # those of --enable-deterministic-inference; "": none
    sampler: ClassVar[str]  # which of `worker.sampling.SAMPLERS` goes with it
    kv_cache_dtypes: ClassVar[tuple[str, ...]]  # values of --kv-cache-dtype that it can do

    @staticmethod
    def use_threads(count: int) -> None:
        """Let so many CPU threads compute in this process, for this backend and its operators."""
        ...

    def __init__(self, setting: Setting) -> None: ...

    def forget(self, slot: int) -> None:
        """The slot's request has ended; its page table will be another one."""
        ...

    def plan(self, host: HostBatch) -> StepPlan:
        """Called once for each step, in order."""
        ...

    def fixed_shapes(self, num_tokens: int) -> Mapping[str, tuple[int, ...]] | None:
        """Of the arrays that tell a step of up to `num_tokens` tokens from another.

        None: this backend cannot work from the same memory in every step, as a CUDA graph does.
        """
        ...

    def bind_fixed(self, batch: Batch, tensors: Mapping[str, torch.Tensor]) -> Attend:
        """Attention as told by `tensors`, whatever they hold when it runs.

        Tokens that a step has not get no results.
        """
        ...
