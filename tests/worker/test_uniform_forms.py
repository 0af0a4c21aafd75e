"""Deterministic mode: one kind of matrix instruction. The interpreter's bits do not show it."""

import numpy as np
import pytest
import torch

from radixserve.models.operators import OPERATORS
from radixserve.worker.attention import BACKENDS, Setting
from radixserve.worker.kv_cache import KVCache

CPU = torch.device("cpu")


@pytest.mark.parametrize("deterministic", [False, True])
def test_attention_has_narrow_tiles_only_without_it(deterministic):
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
    setting = Setting(cache, torch.float32, table, 4, 0.25, deterministic=deterministic)
    attention = BACKENDS["triton"](setting)
    width = attention.narrow.memory.shape[1], attention.wide.memory.shape[1]
    assert (width[0] == width[1]) is deterministic


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
