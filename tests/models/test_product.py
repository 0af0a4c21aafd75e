"""Packed products equal plain ones, and a row's bits depend on nothing but the row."""

import pytest
import torch
from torch import nn

from radixserve.models.onednn import can_pack
from radixserve.models.operators import TORCH
from radixserve.models.product import Product

SHAPES = [(48, 32), (96, 64), (577, 130), (960, 576), (450, 1000)]
HEIGHTS = [1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 50, 64, 100, 200]


def product(outputs: int, inputs: int, bias: bool = False) -> Product:
    def parameter(*shape: int) -> nn.Parameter:
        return nn.Parameter(torch.randn(shape), requires_grad=False)

    torch.manual_seed(outputs)
    return Product(parameter(outputs, inputs), parameter(outputs) if bias else None, TORCH)


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("packed", [False, True])
def test_agrees_with_float64(shape, bias, packed):
    made = product(*shape, bias)
    weight, added = made.weight.double(), made.bias.double() if bias else 0.0
    if packed:
        made.pack()
    x = torch.randn(50, shape[1])
    exact = x.double() @ weight.t() + added
    torch.testing.assert_close(made(x).double(), exact, rtol=1e-5, atol=1e-4)


def test_weights_are_given_up_when_packed():
    made = product(96, 64)
    packs = can_pack(made.weight)
    made.pack()
    made.pack()
    assert (made.weight is None) == packs


def test_other_dtypes_stay_plain():
    made = product(96, 64).to(torch.bfloat16)
    made.pack()
    assert made.weight is not None
    assert made(torch.randn(3, 64, dtype=torch.bfloat16)).shape == (3, 96)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_in_any_batch_and_with_any_threads(shape):
    made = product(*shape)
    if not can_pack(made.weight):
        pytest.skip("this machine has no packed products")
    made.pack()
    x = torch.randn(512, shape[1])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        whole = made(x)
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for height in HEIGHTS:
                for start in (0, 13, 100):
                    rows = slice(start, start + height)
                    assert torch.equal(made(x[rows]), whole[rows]), (threads, height, start)
    finally:
        torch.set_num_threads(before)
