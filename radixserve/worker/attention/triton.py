"""Attention by the Triton kernels: compiled on a GPU, in Triton's interpreter on a CPU (slow).

The kernels read pages where they are, so there is nothing to plan but what the batch holds.
"""

from typing import ClassVar

import torch

from radixserve.worker.attention.backend import Attend
from radixserve.worker.batch import Batch, Repeats
from radixserve.worker.kv_cache import KVCache


class TritonPaged:
    """The `Attention` of `radixserve_kernels`. Imports triton when made, not before."""

    operators: ClassVar[str] = "triton"
    deterministic_operators: ClassVar[str] = "triton-deterministic"
    sampler: ClassVar[str] = "torch"
    kv_cache_dtypes: ClassVar[tuple[str, ...]] = ("auto",)

    def __init__(self, cache: KVCache, scale: float) -> None:
        if cache.pages[0].device.type == "cpu":
            from radixserve_kernels.interpret import enable

            enable()  # has to come before the kernels are imported
        from radixserve_kernels.kv_write import kv_write
        from radixserve_kernels.paged_attention import paged_attention
        from radixserve_kernels.rope_kv_write import rope_kv_write

        self._cache = cache
        self._scale = scale
        self._kv_write = kv_write
        self._rope_kv_write = rope_kv_write
        self._paged_attention = paged_attention

    def plan(self, batch: Batch, repeats: Repeats | None = None) -> Attend:
        max_new = int((batch.host_row_start[1:] - batch.host_row_start[:-1]).max())
        page_table = batch.page_table.index_select(0, batch.row_slot)

        def attend(
            layer: int, qk: torch.Tensor, v: torch.Tensor, turn: torch.Tensor
        ) -> torch.Tensor:
            keys, values = self._cache.key(layer), self._cache.value(layer)
            q, k = qk[:, : -v.shape[1]], qk[:, -v.shape[1] :]
            self._rope_kv_write(q, k, v, turn.squeeze(1), keys, values, batch.write_slots)
            if repeats is not None:
                k, v = (x.index_select(0, repeats.tokens) for x in (k, v))
                self._kv_write(k, v, keys, values, repeats.places)
            out: torch.Tensor = self._paged_attention(
                q,
                keys,
                values,
                page_table,
                batch.row_start,
                batch.kv_len,
                scale=self._scale,
                max_new=max_new,
            )
            return out

        return attend
