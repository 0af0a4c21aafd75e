"""Converting GGUF files: weights, config and tokenizer come back as they were written."""

import json

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from radixserve.models import gguf_convert
from radixserve.models.blocks import Blocks, told_name
from radixserve.models.gguf_convert import convert, exact, main
from radixserve.models.gguf_tokenizer import SPLITTERS, tokenizer_of
from radixserve.models.load import load
from radixserve.models.operators import OPERATORS
from radixserve.models.rotary import llama3_factors
from radixserve.models.spec import Rope, read_spec
from tests.checkpoints import CHAT_TEMPLATE, tiny_checkpoint
from tests.models.gguf_files import write_gguf

SUPPORTED = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
}
TEXT = "The capital of France is Paris.\n\n  x1 = 1234567, don't you'LL  naïve 北京 \t<|im_end|> ok"


@pytest.fixture
def llama(tmp_path):
    return tiny_checkpoint(tmp_path / "llama")


def convert_one(folder, tmp_path, dense=False, **options):
    """The folder converted from `folder` by way of a GGUF file."""
    target = tmp_path / f"converted{dense}"
    target.mkdir()
    convert(write_gguf(folder, tmp_path / "tiny.gguf", **options), target, dense=dense)
    return target


@pytest.mark.parametrize("name", SUPPORTED)
def test_same_weights_and_spec(tmp_path, name):
    arch, overrides = SUPPORTED[name]
    folder = tiny_checkpoint(tmp_path / "original", arch, **overrides)
    target = convert_one(folder, tmp_path)
    assert read_spec(target) == read_spec(folder)
    before, after = load_file(folder / "model.safetensors"), load_file(target / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(after[key].float().equal(value) for key, value in before.items())


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(Kind.F16, torch.float16), (Kind.BF16, torch.bfloat16), (Kind.Q8_0, torch.float32)],
)
def test_matrices_keep_the_smallest_exact_dtype(llama, tmp_path, kind, dtype):
    target = convert_one(llama, tmp_path, kind=kind, dense=True)
    tensors = load_file(target / "model.safetensors")
    assert {t.dtype for t in tensors.values() if t.ndim == 2} == {dtype}
    loaded = load(target, device="cpu", dtype=torch.float32, context_length=0)
    original = load_file(llama / "model.safetensors")["lm_head.weight"]
    head = tensors["lm_head.weight"].float()
    assert (head - original).abs().max() < 0.01
    x = torch.randn(3, head.shape[1])
    torch.testing.assert_close(loaded.head(x), x @ head.t())


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
@pytest.mark.parametrize("tied", [False, True])
def test_blocks_are_kept_and_are_the_numbers_they_stand_for(tmp_path, kind, tied):
    original = tiny_checkpoint(tmp_path / "original", tie_word_embeddings=tied)
    kept = convert_one(original, tmp_path, kind=kind)
    dense = convert_one(original, tmp_path, kind=kind, dense=True)
    numbers, blocks = (load_file(f / "model.safetensors") for f in (dense, kept))
    assert len(numbers) == len(blocks)
    for stored, tensor in blocks.items():
        name, told = told_name(stored)
        assert (told == kind.name) == (tensor.dtype is torch.uint8) == (tensor.ndim == 2)
        if told:
            assert Blocks(tensor, told).numbers().equal(numbers[name].float())
    assert read_spec(kept) == read_spec(dense)
    asked = {"device": "cpu", "dtype": torch.float32, "context_length": 0}
    tokens = torch.arange(7)
    results = [
        load(folder, operators=OPERATORS[name](torch.device("cpu")), **asked)(
            tokens, tokens, lambda layer, qk, v, turn: qk[:, : -v.shape[1]], tokens
        )
        for folder, name in ((kept, "cpu"), (dense, "cpu"), (kept, "torch"))
    ]
    assert results[0].equal(results[1]), "the same bits"
    torch.testing.assert_close(results[0], results[2])


def test_exact_keeps_every_bit():
    assert exact(torch.tensor([1.0, 2.0**120])).dtype == torch.bfloat16
    assert exact(torch.tensor([1.0, 1 + 2.0**-10])).dtype == torch.float16
    assert exact(torch.tensor([2.0**120, 1 + 2.0**-10])).dtype == torch.float32
    assert exact(torch.tensor([1 + 2.0**-20])).dtype == torch.float32


def test_many_files(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_convert, "SHARD_ELEMENTS", 40000)
    target = convert_one(llama, tmp_path)
    assert len(list(target.glob("model-*-of-*.safetensors"))) > 1
    one = load(llama, device="cpu", dtype=torch.float32, context_length=0)
    many = load(target, device="cpu", dtype=torch.float32, context_length=0)
    for mine, other in zip(one.parameters(), many.parameters(), strict=True):
        assert mine.equal(other)


def test_tokenizer_and_template_survive(llama, tmp_path):
    target = convert_one(llama, tmp_path)
    before = Tokenizer.from_file(str(llama / "tokenizer.json"))
    after = Tokenizer.from_file(str(target / "tokenizer.json"))
    ids = after.encode(TEXT).ids
    assert ids == before.encode(TEXT).ids
    assert after.decode(ids, skip_special_tokens=False) == TEXT
    loaded = AutoTokenizer.from_pretrained(target)
    assert loaded(TEXT)["input_ids"] == ids
    assert loaded.chat_template == CHAT_TEMPLATE
    assert (loaded.bos_token, loaded.eos_token) == ("<|endoftext|>", "<|im_end|>")


def test_only_control_tokens_are_special():
    fields = {"model": "gpt2", "pre": "qwen2", "merges": []}
    fields |= {"tokens": ["a", "<tool_call>", "<|end|>"], "token_type": [1, 4, 3]}
    tokenizer = tokenizer_of({f"tokenizer.ggml.{name}": value for name, value in fields.items()})
    ids = tokenizer.encode("a<tool_call>a<|end|>").ids
    assert ids == [0, 1, 0, 2]
    assert tokenizer.decode(ids) == "a<tool_call>a"


@pytest.mark.parametrize("rule", SPLITTERS)
def test_every_splitting_rule_keeps_the_text(llama, tmp_path, rule):
    target = convert_one(llama, tmp_path, pre=rule)
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(TEXT).ids, skip_special_tokens=False) == TEXT


@pytest.mark.parametrize(
    ("rule", "pieces"),
    [
        ("gpt-2", ["a", " 1234"]),
        ("smollm", ["a", " ", "1", "2", "3", "4"]),
        ("llama-bpe", ["a", " ", "123", "4"]),
        ("qwen2", ["a", " ", "1", "2", "3", "4"]),
    ],
)
def test_how_digits_are_split(llama, tmp_path, rule, pieces):
    target = convert_one(llama, tmp_path, pre=rule)
    splitter = Tokenizer.from_file(str(target / "tokenizer.json")).pre_tokenizer
    assert [piece.replace("Ġ", " ") for piece, _ in splitter.pre_tokenize_str("a 1234")] == pieces


def test_beginning_token_is_added_if_the_file_says_so(llama, tmp_path):
    file = write_gguf(llama, tmp_path / "bos.gguf", tokenizer__ggml__add_bos_token=1)
    convert(file, llama)
    assert Tokenizer.from_file(str(llama / "tokenizer.json")).encode("a").ids[0] == 0


def test_rope_scaling(llama, tmp_path):
    options = {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__factor": 4.0}
    options["llama__rope__scaling__original_context_length"] = 128
    rope = read_spec(convert_one(llama, tmp_path, **options)).rope
    assert rope == Rope(kind="yarn", factor=4.0, original_max_position=128)


def test_llama3_factors_are_recognised(llama, tmp_path):
    rope = Rope(theta=10000.0, kind="llama3", factor=32.0, original_max_position=8192)
    target = convert_one(llama, tmp_path, rope_factors=llama3_factors(rope, 16).numpy())
    assert read_spec(target).rope == rope


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rope_factors": np.linspace(1, 8, 8, dtype=np.float32)}, "rope factors other than"),
        ({"llama__rope__scaling__type": "longrope"}, "rope scaling longrope"),
        ({"llama__expert_count": 8}, "mixture of experts"),
        ({"llama__rope__dimension_count": 8}, "only a part of each head"),
        ({"pre": "tekken"}, "tokenizer gpt2/tekken"),
    ],
)
def test_what_cannot_be_exact_is_refused(llama, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        convert_one(llama, tmp_path, **options)


def test_unknown_architecture_is_named(tmp_path, capsys, llama):
    config = json.loads((llama / "config.json").read_bytes())
    (llama / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    file = write_gguf(llama, tmp_path / "mamba.gguf")
    assert main([str(file), str(tmp_path)]) == 1
    assert "architecture mamba is not supported; supported are: llama" in capsys.readouterr().err
