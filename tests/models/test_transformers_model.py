"""What transformers' own code is not served for, each with its reason, and how it is loaded."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from radixserve.models import transformers_model
from radixserve.models.spec import OWN, TRANSFORMERS, implementation
from radixserve.models.transformers_model import load_transformers, max_position
from tests.checkpoints import VOCAB_SIZE, tiny_checkpoint
from tests.models.families import FAMILIES

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 64,
    "factor": 8.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0 + i for i in range(8)],
}


def configured(folder, kind, arch, **overrides):
    """A folder with nothing but a config.json."""
    AutoConfig.for_model(kind, architectures=[arch], **overrides).save_pretrained(folder)
    return folder


def loaded(folder, context_length=0, load_format="dummy"):
    return load_transformers(
        folder,
        device="cpu",
        dtype=torch.float32,
        context_length=context_length,
        load_format=load_format,
    )


@pytest.mark.parametrize(
    ("kind", "arch", "overrides", "message"),
    [
        ("t5", "T5ForConditionalGeneration", {}, "has an encoder"),
        (
            "gemma3",
            "Gemma3ForConditionalGeneration",
            {},
            r"made of several models \(text, vision\): only text models",
        ),
        ("vit", "ViTModel", {}, "ViTModel is no causal language model of transformers"),
        ("gpt2", "GPT2Model", {}, "no causal language model; of this type it is GPT2LMHeadModel"),
        ("mamba", "MambaForCausalLM", {}, "keeps a state that is not keys and values"),
        ("jamba", "JambaForCausalLM", {}, "keeps a state that is not keys and values"),
        ("rwkv", "RwkvForCausalLM", {}, "keeps a state that is not keys and values"),
        ("qwen3_next", "Qwen3NextForCausalLM", {}, "keeps a state that is not keys and values"),
        ("lfm2", "Lfm2ForCausalLM", {"full_attn_idxs": [2]}, "layers of type conv: only those"),
        ("llama4_text", "Llama4ForCausalLM", {}, "layers of type chunked_attention"),
        ("gemma3n_text", "Gemma3nForCausalLM", {}, "has layers that share keys and values"),
        ("bloom", "BloomForCausalLM", {}, "does not let its attention be replaced"),
        (
            "llama",
            "LlamaForCausalLM",
            {"quantization_config": {"quant_method": "awq"}},
            r"quantised \(awq\)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_refused_by_its_config(tmp_path, kind, arch, overrides, message):
    with pytest.raises(ValueError, match=message):
        loaded(configured(tmp_path, kind, arch, **overrides))


def test_a_model_that_transformers_does_not_know(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "martian", "architectures": ["Martian"]}')
    with pytest.raises(ValueError, match=r"of no model that transformers .* knows"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("kind", "arch", "overrides", "message"),
    [
        (
            "minicpm3",
            "MiniCPM3ForCausalLM",
            {"v_head_dim": 16},
            "have keys of 96 and values of 16 numbers",
        ),
        ("gemma4_text", "Gemma4ForCausalLM", {}, "its layers differ in"),
        ("gpt_oss", "GptOssForCausalLM", {"num_local_experts": 4}, "attention needs s_aux"),
        ("bert", "BertLMHeadModel", {}, "does not see all tokens before it, nor the last so many"),
        ("doge", "DogeForCausalLM", {}, "does not tell what a token sees by a plain mask"),
        ("nemotron", "NemotronForCausalLM", {}, "does not hand to its layers"),
        ("diffllama", "DiffLlamaForCausalLM", {}, "do not call attention once each"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_refused_when_tried_out(tmp_path, kind, arch, overrides, message):
    message = f"{arch} cannot be served from pages of K/V: .*{message}"
    with pytest.raises(ValueError, match=message):
        loaded(configured(tmp_path, kind, arch, **SIZES | overrides))


def test_layers_without_attention_are_seen(tmp_path, monkeypatch):
    """Even if their config did not tell."""
    monkeypatch.setattr(transformers_model, "LAYER_TYPES", {"full_attention", "conv"})
    folder = configured(tmp_path, "lfm2", "Lfm2ForCausalLM", **SIZES, full_attn_idxs=[1])
    with pytest.raises(ValueError, match=r"layers \[0\] keep something else than K/V"):
        loaded(folder)


def test_keys_that_depend_on_what_follows_are_seen(tmp_path, monkeypatch):
    """Frequencies that are others beyond 64 tokens, if one let texts grow beyond."""
    folder = configured(tmp_path, "llama", "LlamaForCausalLM", **SIZES, rope_parameters=LONGROPE)
    model = loaded(folder)
    assert (model.context_length, model.detail) == (
        64,
        "the model changes its rotary frequencies beyond",
    )
    with pytest.raises(ValueError, match=r"65 is more than the model allows \(64\)"):
        loaded(folder, 65)
    monkeypatch.setattr(transformers_model, "max_position", lambda config: (512, ""))
    loaded(folder, 64)
    with pytest.raises(ValueError, match="layer 0 computes of a token depends on others"):
        loaded(folder, 65)


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_type": "default"}, 512),
        ({"rope_type": "dynamic", "factor": 4.0}, 512),
        ({"rope_type": "dynamic", "original_max_position_embeddings": 128}, 128),
        ({"rope_type": "longrope", "original_max_position_embeddings": 64}, 64),
        ({"rope_type": "yarn", "original_max_position_embeddings": 512, "factor": 4.0}, 2048),
        ({"rope_type": "yarn", "original_max_position_embeddings": 128, "factor": 4.0}, 512),
        ({"full_attention": {"rope_type": "linear"}, "sliding_attention": {}}, 512),
    ],
    ids=str,
)
def test_how_long_a_text_may_be(rope, expected):
    config = SimpleNamespace(max_position_embeddings=512, rope_parameters=rope)
    limit, detail = max_position(config)
    assert limit == expected and bool(detail) == (expected < 512)
    assert max_position(SimpleNamespace()) == (0, "")


def test_context_length(tmp_path, monkeypatch):
    folder = configured(tmp_path, "gpt2", "GPT2LMHeadModel", **SIZES)
    assert loaded(folder).context_length == 512
    assert loaded(folder, 100).context_length == 100
    with pytest.raises(ValueError, match=r"513 is more than the model allows \(512\)"):
        loaded(folder, 513)
    monkeypatch.setattr(transformers_model, "max_position", lambda config: (0, ""))
    assert loaded(folder, 100).context_length == 100
    with pytest.raises(ValueError, match="give --context-length"):
        loaded(folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("transformer.h.1.ln_1.bias", "", "has no tensor transformer.h.1.ln_1.bias"),
        ("", "transformer.extra", "tensors this architecture does not know: transformer.extra"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, old, new, message):
    file = tiny_checkpoint(tmp_path, "GPT2LMHeadModel") / "model.safetensors"
    tensors = load_file(file)
    if old:
        del tensors[old]
    else:
        tensors[new] = torch.zeros(3)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ValueError, match=message):
        loaded(tmp_path, load_format="auto")


def test_dummy_weights_are_the_same_each_time(tmp_path):
    folder = configured(tmp_path, "gpt2", "GPT2LMHeadModel", **SIZES)
    first, second = (loaded(folder)._network.state_dict() for _ in range(2))
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)
    assert first["transformer.h.0.mlp.c_fc.weight"].std() > 0


@pytest.mark.parametrize(
    ("family", "widest"), [("gpt2", 256), ("phi3", 320), ("mixtral", 640), ("qwen3-moe", 192)]
)
def test_what_a_token_needs_of_memory(tmp_path, family, widest):
    """The widest product, joined or not; for experts times those that a token goes to."""
    arch, overrides = FAMILIES[family]
    overrides = overrides | {"n_inner": 256, "tie_word_embeddings": True}
    model = loaded(tiny_checkpoint(tmp_path, arch, **overrides), load_format="auto")
    assert model.spec.intermediate_size == widest
    parameters = {id(p): p.nbytes for p in model._network.parameters()}
    assert model.weight_bytes >= sum(parameters.values())
    assert model.spec.eos_ids == (2,)


def test_whose_code_computes_a_model(tmp_path):
    for arch, expected in (("LlamaForCausalLM", OWN), ("GPT2LMHeadModel", TRANSFORMERS)):
        folder = tmp_path / arch
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"architectures": ["{arch}"]}}')
        assert implementation(folder) == expected
        for asked in (OWN, TRANSFORMERS):
            assert implementation(folder, asked) == asked
