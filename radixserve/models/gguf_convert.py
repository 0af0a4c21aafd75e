"""A GGUF file as a Hugging Face folder: `python -m radixserve.models.gguf_convert SRC DST`.

Quantised blocks that the worker knows are kept as they are (`blocks.py`); with `--dense` behind the
paths all become numbers, for other programs than this one.

Read with the `gguf` package and not through transformers, whose GGUF loading needs accelerate,
builds the tokenizer in most of a minute, and ignores the rotary factors of Llama 3. Run by `hub`
in a process of its own, since it imports torch; prints a line per step. Ends with a sentence on
stderr and status 1 for files that it cannot convert exactly.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, ReaderTensor, dequantize
from safetensors.torch import save_file
from torch import Tensor

from radixserve.models.blocks import stored_name
from radixserve.models.gguf_tokenizer import write_tokenizer
from radixserve.models.rotary import llama3_factors
from radixserve.models.spec import BLOCKS, Rope
from radixserve_kernels.cpu.linear import BLOCK_BYTES

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
DENSE = "--dense"
SHARD_ELEMENTS = 1 << 29  # at most 2 GiB a file

Fields = dict[str, Any]


def convert(source: Path, folder: Path, *, dense: bool = False) -> None:
    """Write config.json, generation_config.json, tokenizer files and weights into `folder`.

    `dense`: blocks become numbers.
    """
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = config_of(fields, reader.tensors)
    tell("writing the tokenizer")
    write_tokenizer(fields, config["max_position_embeddings"], folder)
    dtypes = write_weights(reader.tensors, config, folder, dense=dense)
    if "uint8" in dtypes:
        dtypes = {"float32"}  # what they stand for
        config["quantization_config"] = {"quant_method": BLOCKS}
    # mixed dtypes are read into the widest
    config["dtype"] = dtypes.pop() if len(dtypes) == 1 else "float32"
    generation = {name: config[name] for name in ("bos_token_id", "eos_token_id")}
    write_json(folder / "generation_config.json", generation)
    write_json(folder / "config.json", config)


def config_of(fields: Fields, tensors: list[ReaderTensor]) -> Fields:
    """The content of config.json, without the dtype."""
    kind = fields["general.architecture"]
    if kind not in ARCHITECTURES:
        raise ValueError(
            f"GGUF architecture {kind} is not supported; supported are: {', '.join(ARCHITECTURES)}."
            " If transformers knows the model, its folder with safetensors can be served"
        )
    own = {k.removeprefix(f"{kind}."): v for k, v in fields.items() if k.startswith(f"{kind}.")}
    if own.get("expert_count"):
        raise ValueError("GGUF files with a mixture of experts are not supported")
    names = {tensor.name for tensor in tensors}
    shapes = {tensor.name: tensor.shape.tolist() for tensor in tensors}
    heads = own["attention.head_count"]
    head_dim = own.get("attention.key_length", own["embedding_length"] // heads)
    if own.get("rope.dimension_count", head_dim) != head_dim:
        raise ValueError("GGUF files that rotate only a part of each head are not supported")
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": shapes["token_embd.weight"][1],
        "hidden_size": own["embedding_length"],
        "intermediate_size": own["feed_forward_length"],
        "num_hidden_layers": own["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": own.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": own["context_length"],
        "rms_norm_eps": shortest_float(own["attention.layer_norm_rms_epsilon"]),
        "attention_bias": "blk.0.attn_output.bias" in names,
        "mlp_bias": "blk.0.ffn_down.bias" in names,
        "tie_word_embeddings": "output.weight" not in names,
        "rope_parameters": rope_of(own, tensors, head_dim),
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }


def rope_of(own: Fields, tensors: list[ReaderTensor], head_dim: int) -> Fields:
    """`rope_parameters` of config.json."""
    theta = own.get("rope.freq_base", 10000.0)
    kind = own.get("rope.scaling.type", "none")
    for tensor in tensors:
        if tensor.name == ROPE_FACTORS:
            return llama3_rope(theta, torch.from_numpy(tensor.data.copy()), head_dim)
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    if kind not in ("linear", "yarn"):
        raise ValueError(f"GGUF rope scaling {kind} is not supported")
    rope = {"rope_type": kind, "rope_theta": theta, "factor": own["rope.scaling.factor"]}
    if original := own.get("rope.scaling.original_context_length"):
        rope["original_max_position_embeddings"] = original
    return rope


def llama3_rope(theta: float, factors: Tensor, head_dim: int) -> Fields:
    """The parameters behind the frequency divisors that a Llama 3 file carries as a tensor.

    All Llama 3.x models differ in `factor` only, the largest divisor; checked, not assumed.
    """
    rope = Rope(theta=theta, kind="llama3", factor=factors.max().item(), original_max_position=8192)
    if not torch.allclose(llama3_factors(rope, head_dim), factors.flatten(), rtol=1e-4):
        raise ValueError("GGUF rope factors other than those of Llama 3 are not supported")
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_position,
    }


def write_weights(
    tensors: list[ReaderTensor], config: Fields, folder: Path, *, dense: bool
) -> set[str]:
    """Write the safetensors files, holding one in memory at a time. Returns the dtypes used."""
    shards = list(shards_of([t for t in tensors if t.name != ROPE_FACTORS]))
    weight_map: dict[str, str] = {}
    dtypes, total = set(), 0
    for i, shard in enumerate(shards):
        tell(f"writing the weights, file {i + 1} of {len(shards)}")
        named = {}
        for tensor in shard:
            name, kind = checkpoint_name(tensor.name), tensor.tensor_type.name
            if kind in BLOCK_BYTES and not dense:
                name = stored_name(name, kind)
                named[name] = ordered(torch.from_numpy(tensor.data.copy()), tensor, config)
            else:
                named[name] = exact(weight(tensor, config))
            dtypes.add(str(named[name].dtype).removeprefix("torch."))
            total += named[name].nbytes
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        if len(shards) == 1:
            file = "model.safetensors"
        save_file(named, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(named, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_json(folder / "model.safetensors.index.json", index)
    return dtypes


def shards_of(tensors: list[ReaderTensor]) -> Iterator[list[ReaderTensor]]:
    shard: list[ReaderTensor] = []
    elements = 0
    for tensor in tensors:
        if shard and elements + tensor.n_elements > SHARD_ELEMENTS:
            yield shard
            shard, elements = [], 0
        shard.append(tensor)
        elements += int(tensor.n_elements)
    yield shard


def weight(tensor: ReaderTensor, config: Fields) -> Tensor:
    """The tensor's values in float32, in the layout of the Hugging Face checkpoint."""
    shape = tensor.shape.tolist()[::-1]  # ggml names the fastest dimension first
    values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).reshape(shape)
    return ordered(values, tensor, config)


def ordered(rows: Tensor, tensor: ReaderTensor, config: Fields) -> Tensor:
    """The rows of a tensor, numbers or blocks, in the order of the Hugging Face checkpoint."""
    kind = tensor.name.split(".")[-2]
    if config["model_type"] != "llama" or kind not in ("attn_q", "attn_k"):
        return rows
    # llama.cpp rotates neighbours for this architecture, so its converter interleaves the halves
    heads = config["num_attention_heads" if kind == "attn_q" else "num_key_value_heads"]
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape).contiguous()


def exact(values: Tensor) -> Tensor:
    """`values` in the smallest dtype that holds each of them.

    Quantised blocks need float32: scale times integer has up to 19 significant bits in Q8_0, and a
    minimum is added in Q4_1; bfloat16 has 8 bits and float16 11. F16 and BF16 files keep their own.
    """
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(values.to(dtype).float(), values):
            return values.to(dtype)
    return values


def checkpoint_name(name: str) -> str:
    """The tensor's name in a Hugging Face checkpoint."""
    stem, _, kind = name.rpartition(".")
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.{kind}"
    block, _, part = stem.removeprefix("blk.").partition(".")
    if not stem.startswith("blk.") or part not in LAYER_NAMES:
        raise ValueError(f"GGUF tensor {name} is not known for this architecture")
    return f"model.layers.{block}.{LAYER_NAMES[part]}.{kind}"


def shortest_float(value: float) -> float:
    """GGUF keeps float32: 9.999999747378752e-06 was written as 1e-05."""
    return float(f"{value:.7g}")


def write_json(path: Path, content: Fields) -> None:
    path.write_text(json.dumps(content, indent=2))


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    source, folder, *options = arguments
    try:
        convert(Path(source), Path(folder), dense=DENSE in options)
    except (ValueError, NotImplementedError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
