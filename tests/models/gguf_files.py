"""GGUF files made from tiny checkpoints the way llama.cpp's own converter lays them out."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

VALUE_TYPES = {
    str: gguf.GGUFValueType.STRING,
    float: gguf.GGUFValueType.FLOAT32,
    int: gguf.GGUFValueType.UINT32,
}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    folder: Path,
    file: Path,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    rope_factors: np.ndarray | None = None,
    **metadata: object,
) -> Path:
    """Write the checkpoint in `folder` to `file`, its matrices as `kind`, and return `file`.

    `metadata` adds or replaces keys; "__" in a name stands for ".".
    """
    config = json.loads((folder / "config.json").read_bytes())
    arch = config["model_type"]
    writer = gguf.GGUFWriter(file, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    add_tokenizer(writer, folder, metadata.pop("pre", "gpt-2"))
    for name, value in metadata.items():
        writer.add_key_value(name.replace("__", "."), value, VALUE_TYPES[type(value)])
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors)
    for name, values in load_file(folder / "model.safetensors").items():
        add_weight(writer, name, values, config, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, rule: str) -> None:
    model = json.loads((folder / "tokenizer.json").read_bytes())
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    vocab = model["model"]["vocab"]
    special = {token["content"] for token in model["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["model"]["merges"]])
    writer.add_bos_token_id(vocab[settings["bos_token"]])
    writer.add_eos_token_id(vocab[settings["eos_token"]])
    writer.add_chat_template(settings["chat_template"])


def add_weight(
    writer: gguf.GGUFWriter,
    name: str,
    values: np.ndarray,
    config: dict,
    kind: gguf.GGMLQuantizationType,
) -> None:
    stem, _, suffix = name.rpartition(".")
    block = ""
    if stem.startswith("model.layers."):
        number, _, stem = stem.removeprefix("model.layers.").partition(".")
        block = f"blk.{number}."
    if config["model_type"] == "llama" and stem in ("self_attn.q_proj", "self_attn.k_proj"):
        heads = config["num_attention_heads" if "q_proj" in stem else "num_key_value_heads"]
        halves = values.reshape(heads, 2, -1, *values.shape[1:])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    own = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
    writer.add_tensor(f"{block}{NAMES[stem]}.{suffix}", gguf.quantize(values, own), raw_dtype=own)
