"""The decoder against transformers: same logits and same greedy tokens on every variant."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from radixserve.models.load import load
from radixserve.models.product import Product
from radixserve.models.spec import MODELS
from tests.checkpoints import VOCAB_SIZE, tiny_checkpoint
from tests.models.dense import DenseAttention
from tests.models.variants import VARIANTS

PROMPT = 150  # beyond the original context of the scaled variants
TOLERANCE = 2e-5  # of the largest logit; float32 sums in another order


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request, tmp_path_factory):
    """Our decoder and transformers' model, of the same checkpoint in float32."""
    arch, overrides = VARIANTS[request.param]
    folder = tiny_checkpoint(tmp_path_factory.mktemp(request.param), arch, **overrides)
    ours = load(folder, device="cpu", dtype=torch.float32, context_length=0)
    return ours, AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tiny_checkpoint(tmp_path_factory.mktemp("llama"))
    return load(folder, device="cpu", dtype=torch.float32, context_length=0)


def prompt(length=PROMPT):
    return torch.randint(VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(1))


def run(decoder, tokens, attend, start=0):
    """Logits after every one of `tokens`, the first of which has position `start`."""
    positions = torch.arange(start, start + len(tokens))
    return decoder(tokens, positions, attend, torch.arange(len(tokens)))


def assert_close(ours, reference):
    assert ours.dtype == torch.float32 and ours.shape == reference.shape
    assert (ours - reference).abs().max() <= TOLERANCE * reference.abs().max()


def test_every_architecture_has_a_variant():
    assert {arch for arch, _ in VARIANTS.values()} == set(MODELS)


@torch.inference_mode()
def test_same_logits(pair):
    ours, theirs = pair
    tokens = prompt()
    assert_close(run(ours, tokens, DenseAttention()), theirs(tokens[None]).logits[0])


@torch.inference_mode()
@pytest.mark.parametrize("cut", [1, 16, 77, PROMPT - 1])
def test_same_logits_in_two_parts(pair, cut):
    ours, theirs = pair
    tokens, attend = prompt(), DenseAttention()
    parts = [run(ours, tokens[:cut], attend), run(ours, tokens[cut:], attend, cut)]
    assert_close(torch.cat(parts), theirs(tokens[None]).logits[0])


@torch.inference_mode()
def test_same_greedy_tokens(pair):
    ours, theirs = pair
    tokens, attend = prompt(20), DenseAttention()
    reference = theirs.generate(
        tokens[None], max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, 20:]
    answer = [run(ours, tokens, attend)[-1].argmax()]
    for position in range(20, 31):
        answer.append(run(ours, answer[-1][None], attend, position)[0].argmax())
    assert torch.stack(answer).equal(reference)


def test_weights_are_held_once(pair):
    ours, theirs = pair
    twice = 0
    if ours.spec.qk_norm:  # kept once per head
        heads = ours.spec.num_heads + ours.spec.num_kv_heads
        twice = ours.spec.num_layers * (heads - 2) * ours.spec.head_dim
    plain = [m for m in ours.modules() if isinstance(m, Product) and m.weight is not None]
    if not plain and ours.spec.tie_embeddings:  # the packed head is a form of its own
        twice += ours.embedding.numel()
    assert ours.weight_bytes == 4 * (sum(p.numel() for p in theirs.parameters()) + twice)
    assert not plain or len(plain) == 4 * ours.spec.num_layers + 1, "packed weights are given up"


def test_only_wanted_logits_in_the_wanted_order(llama):
    tokens = prompt(40)
    every = run(llama, tokens, DenseAttention())
    wanted = torch.tensor([39, 3, 17])
    some = llama(tokens, torch.arange(40), DenseAttention(), wanted)
    assert_close(some, every[wanted])
    none = llama(tokens, torch.arange(40), DenseAttention(), wanted[:0])
    assert none.shape == (0, VOCAB_SIZE)


def test_requests_in_one_step_do_not_mix(llama):
    """Two requests, one in prefill and one in decode, as rows of the same step."""
    first, second = prompt(30), prompt(12).flip(0)
    alone = run(llama, first, DenseAttention())[-1], run(llama, second, DenseAttention())[-1]
    caches = DenseAttention(), DenseAttention()
    run(llama, second[:-1], caches[1])

    def attend(layer, qk, v, turn):
        rows = slice(0, 30), slice(30, 31)
        return torch.cat(
            [cache(layer, qk[r], v[r], turn[r]) for cache, r in zip(caches, rows, strict=True)]
        )

    tokens = torch.cat([first, second[-1:]])
    positions = torch.cat([torch.arange(30), torch.tensor([11])])
    together = llama(tokens, positions, attend, torch.tensor([29, 30]))
    assert_close(together, torch.stack(alone))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near(tmp_path, dtype):
    folder = tiny_checkpoint(tmp_path, "Qwen3ForCausalLM", initializer_range=0.05)
    exact = load(folder, device="cpu", dtype=torch.float32, context_length=0)
    half = load(folder, device="cpu", dtype=dtype, context_length=0)
    attend = DenseAttention()
    logits, reference = run(half, prompt(), attend), run(exact, prompt(), DenseAttention())
    assert attend.keys[0].dtype == attend.values[0].dtype == dtype
    assert logits.dtype == torch.float32
    assert (logits - reference).abs().max() <= 0.05 * reference.abs().max()


def test_a_position_beyond_the_context_is_an_error(llama):
    with pytest.raises(IndexError):
        run(llama, prompt(1), DenseAttention(), start=llama.context_length)
