"""Every set of operators agrees with float64 and with the others, alone and in a decoder."""

import pytest
import torch

from radixserve.models.load import load
from radixserve.models.operators import OPERATORS, TORCH
from radixserve_kernels import reference
from tests.checkpoints import tiny_checkpoint
from tests.models.dense import DenseAttention

CPU = torch.device("cpu")
every_set = pytest.mark.parametrize("name", OPERATORS)


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


@every_set
def test_rms_norm_adds_into_the_residual(name):
    operators = OPERATORS[name](CPU)
    x, weight, residual = random(7, 100), random(100), 2 * random(7, 100)
    total = residual.double()
    expected = reference.rms_norm(x.double(), weight.double(), 1e-3, total)
    got = operators.rms_norm(x.clone(), weight, 1e-3, residual)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(residual.double(), total, rtol=1e-6, atol=1e-6)


@every_set
def test_rms_norm_of_heads_that_lie_in_a_wider_tensor(name):
    operators = OPERATORS[name](CPU)
    x, weight = random(5, 6, 20)[:, :4], random(4, 20)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-3)
    got = operators.rms_norm(x, weight, 1e-3)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)


@every_set
def test_silu_mul(name):
    gate_up = 3 * random(9, 74)
    got = OPERATORS[name](CPU).silu_mul(gate_up.clone())
    expected = reference.silu_mul(gate_up.double())
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("name", OPERATORS.keys() - {"torch"})
def test_a_decoder_has_the_same_logits_with_each_set(tmp_path, name, architecture):
    folder = tiny_checkpoint(tmp_path, architecture)
    tokens, wanted = torch.arange(3, 22), torch.tensor([18, 4])
    logits = [
        load(folder, device="cpu", dtype=torch.float32, context_length=0, operators=operators)(
            tokens, torch.arange(19), DenseAttention(), wanted
        )
        for operators in (OPERATORS[name](CPU), TORCH)
    ]
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
