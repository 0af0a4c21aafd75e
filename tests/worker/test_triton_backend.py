"""The triton backend's parts, where the interpreter's bits or small steps do not show a fault."""

import numpy as np
import pytest
import torch

from radixserve.models.operators import OPERATORS
from radixserve.worker.attention import Setting
from radixserve.worker.attention.triton import Items, TritonPaged, TritonPlan
from radixserve.worker.kv_cache import KVCache
from radixserve_kernels.attention_options import Options
from radixserve_kernels.attention_plan import Plan

CPU = torch.device("cpu")


def attention(*, deterministic=True):
    cache = KVCache(
        num_layers=1,
        num_pages=4,
        page_size=4,
        num_kv_heads=2,
        head_dim=16,
        dtype=torch.float32,
        device=CPU,
    )
    table = np.zeros((2, 4), np.int32)
    options = [Options(0.25)]
    return TritonPaged(
        Setting(cache, torch.float32, table, 4, options, deterministic=deterministic)
    )


@pytest.mark.parametrize("deterministic", [False, True])
def test_narrow_tiles_are_others_only_without_deterministic_mode(deterministic):
    """Of another kind of matrix instruction on some GPUs."""
    made = attention(deterministic=deterministic)
    width = made.narrow.memory.shape[1], made.wide.memory.shape[1]
    assert (width[0] == width[1]) is deterministic


def test_items_that_found_no_room_are_not_taken_for_those_in_memory(monkeypatch):
    monkeypatch.setattr("radixserve.worker.attention.triton.ITEM_BYTES", {"cpu": 24})
    items = Items(3, CPU)
    rows = np.arange(9, dtype=np.int32).reshape(3, 3)
    items.bring(rows[2:], same=False)
    assert items.bring(rows, same=False).tolist() == rows.tolist()
    assert items.bring(rows[:2], same=True).tolist() == rows[:2].tolist()


@pytest.mark.parametrize("form", ["narrow", "wide"])
def test_a_graph_reads_no_items_that_found_no_room(form):
    made = attention()
    memory = made.narrow.memory
    rows = {"narrow": 1, "wide": 1} | {form: len(memory) + 1}
    rows = {name: np.full((n, memory.shape[1]), -1, np.int32) for name, n in rows.items()}
    nothing = np.zeros(4, np.int32)
    plan = Plan(
        np.zeros((0, 4), np.int32), **rows, lookup=nothing, part_start=nothing[:2], same_items=False
    )
    assert TritonPlan(made, plan).fixed(4) is None


@pytest.mark.parametrize("rows", [1, 70])
def test_products_are_asked_for_uniform_tiles(rows, monkeypatch):
    from radixserve_kernels import matmul

    asked = []
    tile_for = matmul.tile_for

    def noted(*args, uniform):
        asked.append(uniform)
        return tile_for(*args, uniform=uniform)

    operators = OPERATORS["triton-deterministic"](CPU)
    monkeypatch.setattr(matmul, "tile_for", noted)
    operators.linear(torch.ones(rows, 8), torch.ones(16, 8), None)
    assert asked == [True]
