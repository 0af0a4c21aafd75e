"""Layers in one call refuse what does not fit; that they compute right `test_bits.py` shows."""

from typing import Any

import numpy as np
import pytest
import torch

from radixserve_kernels.attention_options import Options
from radixserve_kernels.cpu import AttentionPlan, Layers, LayerWeights, PackedLinear, Shape, Sight

HEADS, KV_HEADS, SIZE, HIDDEN, INNER, TOKENS = 4, 2, 8, 24, 40, 3
SIZES: dict[str, Any] = {
    "num_heads": HEADS,
    "num_kv_heads": KV_HEADS,
    "head_size": SIZE,
    "eps": 1e-5,
}


def packed(outputs: int, inputs: int, *, gate_up: bool = False) -> PackedLinear:
    return PackedLinear.pack(torch.randn(outputs, inputs), gate_up=gate_up)


def weights(**changes: Any) -> LayerWeights:
    whole = LayerWeights(
        qkv=packed((HEADS + 2 * KV_HEADS) * SIZE, HIDDEN),
        output=packed(HIDDEN, HEADS * SIZE),
        gate_up=packed(2 * INNER, HIDDEN, gate_up=True),
        down=packed(HIDDEN, INNER),
        qk_norm=None,
        mlp_norm=torch.ones(HIDDEN),
        next_norm=torch.ones(HIDDEN),
    )
    return whole._replace(**changes)


def step(**changes: Any) -> dict[str, Any]:
    pages = torch.full((4, 2, KV_HEADS, 4, SIZE), torch.nan)
    table = np.arange(4, dtype=np.int32)[None]
    plan = AttentionPlan(
        np.array([0]), np.array([0, TOKENS]), np.array([TOKENS]), table, Shape.of(pages, HEADS)
    )
    slots = torch.arange(TOKENS, dtype=torch.int32)
    return {
        "x": torch.randn(TOKENS, HIDDEN),
        "normed": torch.randn(TOKENS, HIDDEN),
        "turn": torch.ones(TOKENS, 1, SIZE // 2, dtype=torch.complex64),
        "sight": Sight([plan], [pages], [Options(SIZE**-0.5)], slots),
        "wanted": torch.tensor([2, 0, 2], dtype=torch.int32),
    } | changes


def test_wanted_tokens_in_their_order() -> None:
    layers = Layers([weights()], **SIZES)
    torch.manual_seed(0)
    given = step()
    again = given | {"wanted": torch.arange(TOKENS)}
    copies = [{k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in g.items()}
              for g in (given, again)]  # fmt: skip
    some, all_ = (layers(**copy) for copy in copies)
    assert some.isfinite().all() and some.equal(all_[[2, 0, 2]])
    assert layers(**step(wanted=torch.empty(0, dtype=torch.int32))).shape == (0, HIDDEN)


def test_products_that_do_not_fit_each_other() -> None:
    for changes in (
        {"qkv": packed(HIDDEN, HIDDEN)},
        {"output": packed(HIDDEN, HIDDEN)},
        {"gate_up": packed(INNER, HIDDEN)},
        {"down": packed(HIDDEN, INNER + 1)},
        {"mlp_norm": torch.ones(HIDDEN + 1)},
        {"next_norm": torch.ones(HIDDEN, dtype=torch.float64)},
        {"qk_norm": torch.ones(HEADS, SIZE)},
    ):
        with pytest.raises(ValueError, match=r"must|as such"):
            Layers([weights(**changes)], **SIZES)


def test_steps_that_do_not_fit() -> None:
    layers = Layers([weights()], **SIZES)
    sight: Sight = step()["sight"]
    for changes, error in (
        ({"x": torch.randn(TOKENS, HIDDEN + 1)}, ValueError),
        ({"normed": torch.randn(TOKENS, HIDDEN).double()}, ValueError),
        ({"turn": torch.ones(TOKENS, SIZE, dtype=torch.complex64)}, ValueError),
        ({"sight": sight._replace(slots=sight.slots.float())}, ValueError),
        ({"sight": sight._replace(slots=sight.slots + 100)}, IndexError),
        ({"sight": sight._replace(pages=[sight.pages[0][:2]])}, ValueError),
        ({"wanted": torch.tensor([TOKENS])}, IndexError),
        ({"wanted": torch.tensor([-1])}, IndexError),
    ):
        with pytest.raises(error):
            layers(**step(**changes))
