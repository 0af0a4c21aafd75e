"""Reading config.json: both styles of transformers give one spec; the unsupported is refused."""

import json

import pytest

from radixserve.models.spec import MODELS, Rope, read_spec, spec_of
from tests.checkpoints import IM_END, tiny_checkpoint
from tests.models.variants import LLAMA3, YARN

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
QWEN2 = BASE | {"architectures": ["Qwen2ForCausalLM"]}
MISTRAL = BASE | {"architectures": ["MistralForCausalLM"]}


def spec(config, **changes):
    return spec_of(config | changes, None)


@pytest.mark.parametrize("arch", MODELS)
def test_reads_what_transformers_writes(tmp_path, arch):
    got = read_spec(tiny_checkpoint(tmp_path, arch, rms_norm_eps=1e-5, sliding_window=None))
    assert (got.architecture, got.vocab_size, got.hidden_size) == (arch, 512, 64)
    assert (got.num_layers, got.num_heads, got.num_kv_heads, got.head_dim) == (2, 4, 2, 16)
    assert (got.max_position, got.rms_norm_eps, got.eos_ids) == (512, 1e-5, (IM_END,))
    assert (got.sliding_window, got.dtype, got.rope) == (0, "float32", Rope())


@pytest.mark.parametrize("scaling", [None, LLAMA3, YARN])
def test_both_styles_of_rope_agree(scaling):
    new = spec(BASE, rope_parameters=(scaling or {"rope_type": "default"}) | {"rope_theta": 7e4})
    legacy = scaling and {k: v for k, v in scaling.items() if k != "rope_theta"}
    old = spec(BASE, rope_theta=7e4, rope_scaling=legacy)
    assert new == old
    assert new.rope.theta == 7e4
    if legacy:
        legacy["type"] = legacy.pop("rope_type")
        assert spec(BASE, rope_theta=7e4, rope_scaling=legacy) == old


def test_defaults_of_old_configs():
    old = {k: v for k, v in BASE.items() if k != "num_key_value_heads"}
    got = spec(old)
    assert (got.num_kv_heads, got.head_dim, got.rope.theta, got.tie_embeddings) == (
        4,
        16,
        1e4,
        False,
    )
    assert spec(BASE, torch_dtype="bfloat16").dtype == spec(BASE, dtype="bfloat16").dtype


def test_what_differs_between_architectures():
    llama = spec(BASE, attention_bias=True)
    assert (llama.qkv_bias, llama.o_bias, llama.mlp_bias, llama.qk_norm) == (
        True,
        True,
        False,
        False,
    )
    qwen2 = spec(QWEN2)
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = spec(BASE, architectures=["Qwen3ForCausalLM"])
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)


@pytest.mark.parametrize(
    ("config", "changes", "window", "position"),
    [
        (MISTRAL, {"sliding_window": 100}, 100, 100),
        (MISTRAL, {"sliding_window": 4096}, 4096, 512),
        (MISTRAL, {"sliding_window": None}, 0, 512),
        (QWEN2, {"sliding_window": 100}, 0, 512),
        (QWEN2, {"sliding_window": 100, "use_sliding_window": True}, 0, 512),
        (
            QWEN2,
            {"sliding_window": 100, "use_sliding_window": True, "max_window_layers": 1},
            100,
            100,
        ),
        (
            QWEN2,
            {
                "sliding_window": 100,
                "use_sliding_window": True,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            100,
            100,
        ),
    ],
)
def test_context_is_cut_to_an_active_window(config, changes, window, position):
    got = spec(config, **changes)
    assert (got.sliding_window, got.max_position) == (window, position)


def test_yarn_counts_the_scaled_context():
    assert spec(BASE, rope_scaling=YARN | {"factor": 8.0}).max_position == 1024
    assert spec(BASE, rope_scaling=YARN).max_position == 512
    derived = spec(BASE, rope_scaling={k: v for k, v in YARN.items() if k != "factor"})
    assert derived.rope.factor == 4.0


@pytest.mark.parametrize(
    ("eos", "in_generation", "expected"),
    [(5, None, (5,)), (5, [6, 7], (6, 7)), (5, 0, (0,)), (None, None, ()), ([8, 9], None, (8, 9))],
)
def test_end_tokens(tmp_path, eos, in_generation, expected):
    (tmp_path / "config.json").write_text(json.dumps(BASE | {"eos_token_id": eos}))
    if in_generation is not None:
        text = json.dumps({"eos_token_id": in_generation})
        (tmp_path / "generation_config.json").write_text(text)
    assert read_spec(tmp_path).eos_ids == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*LlamaForCausalLM.*Qwen3"),
        ({"architectures": None}, r"\(none\) is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act gelu .*; --model-impl transformers may serve it"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised .awq."),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype float8_e4m3fn"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type dynamic"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope type longrope"),
        ({"rope_scaling": {"type": "linear"}}, "linear needs a factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive"),
        ({"hidden_size": None}, "hidden_size must be a positive"),
        ({"num_key_value_heads": 3}, "4 heads on 3 K/V heads"),
        ({"head_dim": 15}, "head size even"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
    ],
)
def test_unsupported_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        spec(BASE, **changes)


def test_unreadable_config(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        read_spec(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        read_spec(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="is not a JSON object"):
        read_spec(tmp_path)
