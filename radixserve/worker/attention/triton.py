"""Attention by the Triton kernels: compiled on a GPU, in Triton's interpreter on a CPU (slow).

The kernels read pages where they are. What is planned is which program reads which chunk of K/V for
whom (`radixserve_kernels.attention_plan`): a chunk that several requests share is read once.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from radixserve.models.model import Attend
from radixserve.worker.attention.backend import Setting
from radixserve.worker.batch import Batch, HostBatch, Repeats
from radixserve.worker.kv_cache import FP8_CODES
from radixserve.worker.upload import upload
from radixserve_kernels.attention_plan import ITEM_HEAD, NOBODY, Plan, Planner
from radixserve_kernels.tiles import attention_tiles, chip_of

if TYPE_CHECKING:
    from radixserve_kernels.paged_attention import Work

PART_BYTES = {"cuda": 512 << 20, "cpu": 1 << 20}  # for the partial results of a layer
ITEM_BYTES = {"cuda": 4 << 20, "cpu": 64 << 10}  # for narrow and wide items each


class TritonPaged:
    """The `Attention` of `radixserve_kernels`. Imports triton when made, not before."""

    operators: ClassVar[str] = "triton"
    deterministic_operators: ClassVar[str] = "triton-deterministic"
    sampler: ClassVar[str] = "triton"
    kv_cache_dtypes: ClassVar[tuple[str, ...]] = ("auto", "fp8_e4m3")

    @staticmethod
    def use_threads(count: int) -> None:
        torch.set_num_threads(count)

    def __init__(self, setting: Setting) -> None:
        pages = setting.cache.pages[0]
        if pages.device.type == "cpu":
            from radixserve_kernels.interpret import enable

            enable()  # has to come before the kernels are imported
        _, _, num_kv_heads, page_size, head_dim = pages.shape
        group = setting.num_heads // num_kv_heads
        tiles = attention_tiles(
            chip_of(pages.device),
            setting.dtype.itemsize,
            head_dim,
            group,
            page_size,
            pages.element_size(),
        )
        self._tiles = tiles.uniform() if setting.deterministic else tiles
        part_bytes = setting.num_heads * (head_dim + 2) * torch.float32.itemsize
        shape = (PART_BYTES[pages.device.type] // part_bytes, setting.num_heads, head_dim)
        self._parts = torch.empty(shape, dtype=torch.float32, device=pages.device)
        self._stats = torch.empty((2, *shape[:2]), dtype=torch.float32, device=pages.device)
        self._planner = Planner(
            setting.page_table,
            page_size=page_size,
            group=group,
            tiles=self._tiles,
            max_parts=shape[0],
        )
        self._setting = setting
        self.narrow = Items(ITEM_HEAD + self._tiles.narrow.block_m // group, pages.device)
        self.wide = Items(ITEM_HEAD + self._tiles.wide.block_m // group, pages.device)

    def forget(self, slot: int) -> None:
        self._planner.forget(slot)

    def plan(self, host: HostBatch) -> "TritonPlan":
        new = np.diff(host.row_start)
        start = host.kv_len - new
        slots, start, new = (x.astype(np.int32) for x in (host.row_slot, start, new))
        return TritonPlan(self, self._planner.plan(slots, start, new))

    def fixed_shapes(self, num_tokens: int) -> Mapping[str, tuple[int, ...]] | None:
        slots = len(self._setting.page_table)
        return {
            "counts": (2,),
            "lookup": (slots + num_tokens,),
            "part_start": (num_tokens + 1,),
        }

    def bind_fixed(self, batch: Batch, tensors: Mapping[str, torch.Tensor]) -> Attend:
        no_tiles = torch.empty((0, 4), dtype=torch.int32, device=self._parts.device)
        items = {"narrow": self.narrow.memory, "wide": self.wide.memory}
        work = self.work({"tiles": no_tiles, **items, **tensors}, len(self._parts))
        return self.attend(batch, work)

    def work(self, tensors: Mapping[str, torch.Tensor], num_parts: int) -> "Work":
        """A plan's tensors with room for its partial results, of which layers have one."""
        from radixserve_kernels.paged_attention import Work

        return Work(**tensors, parts=self._parts, stats=self._stats, num_parts=num_parts)

    def attend(self, batch: Batch, work: "Work", repeats: Repeats | None = None) -> Attend:
        """Attention over a batch whose work is on the device."""
        from radixserve_kernels.kv_write import kv_write
        from radixserve_kernels.paged_attention import paged_attention
        from radixserve_kernels.rope_kv_write import rope_kv_write

        cache, options = self._setting.cache, self._setting.options

        def attend(
            layer: int, qk: torch.Tensor, v: torch.Tensor, turn: torch.Tensor | None
        ) -> torch.Tensor:
            keys, values, scales = cache.key(layer), cache.value(layer), None
            if keys.dtype == FP8_CODES:
                scales = (cache.key_scale(layer), cache.value_scale(layer))
            q, k = qk[:, : -v.shape[1]], qk[:, -v.shape[1] :]
            slots = batch.write_slots
            if turn is None:
                kv_write(k, v, keys, values, slots, scales=scales)
            else:
                rope_kv_write(q, k, v, turn.squeeze(1), keys, values, slots, scales=scales)
            if repeats is not None:
                k, v = (x.index_select(0, repeats.tokens) for x in (k, v))
                kv_write(k, v, keys, values, repeats.places, scales=scales)
            return paged_attention(
                q, keys, values, batch.page_table, batch.positions, work, self._tiles,
                options[layer], scales,
            )  # fmt: skip

        return attend


class TritonPlan:
    """A `StepPlan` of `TritonPaged`."""

    def __init__(self, attention: TritonPaged, plan: Plan) -> None:
        self._attention = attention
        self._plan = plan

    def bind(self, batch: Batch, repeats: Repeats | None = None) -> Attend:
        plan, attention = self._plan, self._attention
        arrays = plan.arrays()
        narrow = attention.narrow.bring(arrays.pop("narrow"), same=plan.same_items)
        wide = attention.wide.bring(arrays.pop("wide"), same=plan.same_items)
        tensors = upload(arrays, narrow.device) | {"narrow": narrow, "wide": wide}
        work = attention.work(tensors, plan.num_parts)
        return attention.attend(batch, work, repeats)

    def fixed(self, num_tokens: int) -> Mapping[str, np.ndarray] | None:
        plan, attention = self._plan, self._attention
        pairs = ((attention.narrow, plan.narrow), (attention.wide, plan.wide))
        if len(plan.tiles) or not all(items.has_room(rows) for items, rows in pairs):
            return None
        for items, rows in pairs:
            items.bring(rows, same=plan.same_items)
        more = num_tokens - (len(plan.part_start) - 1)
        return {
            "counts": plan.arrays()["counts"],
            "lookup": np.pad(plan.lookup, (0, more), constant_values=NOBODY),
            "part_start": np.pad(plan.part_start, (0, more), mode="edge"),
        }


class Items:
    """A planner's items on the device, brought there only when they have changed."""

    def __init__(self, width: int, device: torch.device) -> None:
        """`memory` is [N, width] int32: its first rows are the items, if they found room."""
        rows = ITEM_BYTES[device.type] // (width * torch.int32.itemsize)
        self.memory = torch.full((rows, width), NOBODY, dtype=torch.int32, device=device)
        self._holds = False

    def has_room(self, rows: np.ndarray) -> bool:
        return len(rows) <= len(self.memory)

    def bring(self, rows: np.ndarray, *, same: bool) -> torch.Tensor:
        """The rows on the device. `same`: they are what the last call brought, or begin it."""
        if not self.has_room(rows):
            self._holds = False
            return upload({"rows": rows}, self.memory.device)["rows"]
        held = self.memory[: len(rows)]
        if not (same and self._holds):
            held.copy_(upload({"rows": rows}, self.memory.device)["rows"])
            self._holds = True
        return held
