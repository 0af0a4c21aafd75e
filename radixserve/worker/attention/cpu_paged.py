"""Attention by the C kernels for CPUs: pages are read where they are, a shared chunk once for all.

A token's bits depend on its query and on what it sees, never on the batch, the cut of its row into
steps, or threads (`radixserve_kernels.cpu.attention`).
"""

from collections.abc import Mapping
from typing import ClassVar

import torch

from radixserve.models.model import Attend
from radixserve.worker.attention.backend import Setting
from radixserve.worker.batch import Batch, HostBatch, Repeats
from radixserve_kernels.cpu import (
    AttentionPlan,
    Parts,
    Shape,
    Sight,
    paged_attention,
    rope_kv_write,
    set_threads,
)


class CpuPaged:
    """The `Attention` of `radixserve_kernels.cpu`, which has to be there."""

    operators: ClassVar[str] = "cpu"
    deterministic_operators: ClassVar[str] = "cpu"
    sampler: ClassVar[str] = "torch"
    kv_cache_dtypes: ClassVar[tuple[str, ...]] = ("auto", "float16")

    @staticmethod
    def use_threads(count: int) -> None:
        """The kernels' own; what is left to torch is little, and its threads would spin beside."""
        set_threads(count)
        torch.set_num_threads(1)

    def __init__(self, setting: Setting) -> None:
        """Raises ValueError for number formats and devices that the kernels have no code for."""
        pages = setting.cache.pages[0]
        if pages.device.type != "cpu" or setting.dtype is not torch.float32:
            raise ValueError("--attention-backend cpu needs --device cpu and --dtype float32")
        self._setting = setting
        self._shape = Shape.of(pages, setting.num_heads)
        self._windows = sorted({options.window for options in setting.options})
        self._parts = Parts()

    def forget(self, slot: int) -> None:
        """Nothing is remembered."""

    def plan(self, host: HostBatch) -> "CpuPlan":
        plans = {
            window: AttentionPlan(
                host.row_slot,
                host.row_start,
                host.kv_len,
                host.page_table,
                self._shape,
                window=window,
                parts=self._parts,
            )
            for window in self._windows
        }
        return CpuPlan(self._setting, plans)

    def fixed_shapes(self, num_tokens: int) -> None:
        return None

    def bind_fixed(self, batch: Batch, tensors: Mapping[str, torch.Tensor]) -> Attend:
        raise AssertionError("this backend has no fixed shapes to bind")


class CpuPlan:
    """A `StepPlan` of `CpuPaged`: one of the kernels' for each window of the layers."""

    def __init__(self, setting: Setting, plans: Mapping[int, AttentionPlan]) -> None:
        self._setting = setting
        self._plans = plans

    def bind(self, batch: Batch, repeats: Repeats | None = None) -> "CpuAttend":
        return CpuAttend(self._setting, self._plans, batch, repeats)

    def fixed(self, num_tokens: int) -> None:
        return None


class CpuAttend:
    """An `Attend`, and for operators that do all layers in one call what it would see."""

    sight: Sight | None  # None: layers have more to do than these operators know

    def __init__(
        self,
        setting: Setting,
        plans: Mapping[int, AttentionPlan],
        batch: Batch,
        repeats: Repeats | None,
    ) -> None:
        self._cache = setting.cache
        self._options = setting.options
        self._plans = plans
        self._slots = batch.write_slots
        self._repeats = repeats
        each = [plans[options.window] for options in setting.options]
        self.sight = Sight(each, setting.cache.pages, setting.options, batch.write_slots)
        if repeats is not None:
            self.sight = None

    def __call__(
        self, layer: int, qk: torch.Tensor, v: torch.Tensor, turn: torch.Tensor | None
    ) -> torch.Tensor:
        pages, options = self._cache.pages[layer], self._options[layer]
        q, k = qk[:, : -v.shape[1]], qk[:, -v.shape[1] :]
        rope_kv_write(q, k, v, turn, pages, self._slots)
        if self._repeats is not None:
            k, v = (x.index_select(0, self._repeats.tokens) for x in (k, v))
            self._cache.put(layer, self._repeats.places, k, v)
        return paged_attention(q, pages, self._plans[options.window], options)
