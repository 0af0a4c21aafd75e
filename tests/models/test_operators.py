"""Every set of operators agrees with float64 and with the others, alone and in a decoder."""

import itertools

import pytest
import torch

from radixserve.models.load import load
from radixserve.models.operators import OPERATORS, TORCH
from radixserve.models.product import Product
from radixserve.models.rotary import rotate
from radixserve_kernels import reference
from tests.checkpoints import tiny_checkpoint
from tests.kernels.interpreter_repair import repaired
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
@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - {"torch"}))
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


def attend_by_token(lengths):
    """An `attend` for requests of `lengths` tokens, side by side, that looks at a token at a time.

    What it gives for a token depends on the request's tokens up to there, and not on the step.
    """

    def attend(layer, qk, v, turn):
        heads = v.shape[1]
        q, k = rotate(qk, turn).double().tensor_split([-heads], 1)
        k, v64 = (x.repeat_interleave(q.shape[1] // heads, 1) for x in (k, v.double()))
        out = []
        for start, length in zip(itertools.accumulate((0, *lengths)), lengths, strict=False):
            for end in range(start, start + length):
                score = (q[end] * k[start : end + 1]).sum(-1) * q.shape[2] ** -0.5  # [seen, heads]
                out.append((score.softmax(0)[..., None] * v64[start : end + 1]).sum(0))
        return torch.stack(out).to(v.dtype)

    return attend


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM"])
def test_deterministic_logits_have_the_same_bits_alone_and_in_any_batch(tmp_path, architecture):
    """Qwen2 has biases. The batch of 88 and its 70 fill another tile than 17 tokens and 1 do."""
    operators = OPERATORS["triton-deterministic"](CPU)
    decoder = load(
        tiny_checkpoint(tmp_path, architecture, tie_word_embeddings=True),
        device="cpu", dtype=torch.float32, context_length=0, operators=operators,
    )  # fmt: skip
    assert all(p.weight is not None for p in decoder.modules() if isinstance(p, Product))
    lengths = [17, 1, 70]
    tokens = torch.randint(512, (sum(lengths),), generator=torch.Generator().manual_seed(2))
    places = torch.cat([torch.arange(length) for length in lengths])
    everything = torch.arange(len(tokens))
    with repaired():
        together = decoder(tokens, places, attend_by_token(lengths), everything).split(lengths)
        for request, whole in zip(tokens.split(lengths), together, strict=True):
            size = len(request)
            attend = attend_by_token([size])
            alone = decoder(request, torch.arange(size), attend, torch.arange(size))
            assert torch.equal(alone, whole)
            last = decoder(request, torch.arange(size), attend, torch.tensor([size - 1]))
            assert torch.equal(last, whole[-1:])
