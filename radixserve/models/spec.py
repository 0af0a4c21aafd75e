"""What a checkpoint is: a `ModelSpec`, read from its config.json, to build our own decoder from.

Not the network and not the weights: no torch here, so the launcher can read a checkpoint in
milliseconds. `MODELS` is the table of known architectures; an entry says only what differs between
them. What would change the answers and is not supported is refused by name. All other models are
transformers' (`transformers_model`).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

Fields = dict[str, Any]  # a JSON object
T = TypeVar("T")

BLOCKS = "gguf_blocks"  # the quant_method of weights that keep a GGUF file's blocks
ROPE_KINDS = ("default", "linear", "llama3", "yarn")
DTYPES = ("float32", "bfloat16", "float16")
OWN, TRANSFORMERS = "radixserve", "transformers"  # whose code computes the model: --model-impl
ELSE = "; --model-impl transformers may serve it"


class Rope(Struct, frozen=True, kw_only=True):
    """Rotary position embedding: base, and how the frequencies are scaled to a longer context."""

    theta: float = 10000.0
    kind: str = "default"  # one of ROPE_KINDS
    factor: float = 1.0
    original_max_position: int = 0  # llama3, yarn: the context the model was first trained on
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 0.0  # yarn: multiplies cos and sin; 0: derived from the others
    mscale: float = 0.0  # yarn: with `mscale_all_dim`, derives the attention factor
    mscale_all_dim: float = 0.0
    truncate: bool = True  # yarn: whether the border dimensions are rounded outwards


class ModelShape(Struct, frozen=True, kw_only=True):
    """What the worker needs to know of any model. Sizes in elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int  # what a layer holds of a token at once is at most three times as much
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eos_ids: tuple[int, ...] = ()


class ModelSpec(ModelShape, frozen=True, kw_only=True):
    """Everything our own decoder needs to know about a checkpoint."""

    rms_norm_eps: float = 1e-6
    rope: Rope = Rope()
    max_position: int  # tokens a request may have, after `sliding_window` is taken into account
    sliding_window: int = 0  # not 0: the config's window; `max_position` was cut to it
    tie_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    dtype: str = "float32"  # of the checkpoint


def _llama(config: Fields) -> Fields:
    bias = bool(config.get("attention_bias"))
    return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": bool(config.get("mlp_bias"))}


def _mistral(config: Fields) -> Fields:
    return {"sliding_window": config.get("sliding_window", 4096) or 0}


def _qwen2(config: Fields) -> Fields:
    return {"qkv_bias": True, "sliding_window": _qwen_window(config)}


def _qwen3(config: Fields) -> Fields:
    bias = bool(config.get("attention_bias"))
    return {
        "qkv_bias": bias,
        "o_bias": bias,
        "qk_norm": True,
        "head_dim": config.get("head_dim", 128),
        "sliding_window": _qwen_window(config),
    }


def _qwen_window(config: Fields) -> int:
    """The window, if at least one layer uses it: Qwen slides from layer `max_window_layers` on."""
    if not config.get("use_sliding_window"):
        return 0
    if types := config.get("layer_types"):
        slides = "sliding_attention" in types
    else:
        slides = config.get("max_window_layers", 28) < config["num_hidden_layers"]
    return (config.get("sliding_window", 4096) or 0) if slides else 0


MODELS: dict[str, Callable[[Fields], Fields]] = {
    "LlamaForCausalLM": _llama,  # Llama 1-3, SmolLM2, TinyLlama, Yi
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,  # Qwen2 and 2.5
    "Qwen3ForCausalLM": _qwen3,  # the dense Qwen3
}


def implementation(folder: Path, asked: str = "auto") -> str:
    """OWN or TRANSFORMERS: what "auto" means for the checkpoint in `folder`, else what is asked."""
    if asked != "auto":
        return asked
    return OWN if architecture_of(folder) in MODELS else TRANSFORMERS


def architecture_of(folder: Path) -> str:
    """What config.json names; "(none)" if nothing. ValueError if there is no such file."""
    return _architecture(read_config(folder))


def read_spec(folder: Path) -> ModelSpec:
    """The spec of the checkpoint in `folder`, from config.json and generation_config.json.

    Raises ValueError, with a sentence that names the cause, for what is missing or not supported.
    """
    config = read_config(folder)
    return spec_of(config, read_eos(folder, config))


def read_config(folder: Path) -> Fields:
    """config.json's content. Raises ValueError if there is none."""
    return _read_json(folder / "config.json")


def read_eos(folder: Path, config: Fields) -> int | list[int] | None:
    """The ids that end an answer, from generation_config.json, else from `config`."""
    generation = folder / "generation_config.json"
    eos = _read_json(generation).get("eos_token_id") if generation.exists() else None
    return config.get("eos_token_id") if eos is None else eos


def eos_ids(eos: int | list[int] | None) -> tuple[int, ...]:
    return (eos,) if isinstance(eos, int) else tuple(eos or ())


def spec_of(config: Fields, eos: int | list[int] | None) -> ModelSpec:
    """The spec that a config.json's content stands for, in the style of transformers 4 or 5."""
    architecture = _architecture(config)
    if architecture not in MODELS:
        raise ValueError(
            f"architecture {architecture} is not supported; supported are: {', '.join(MODELS)}"
        )
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise ValueError(f"config.json: hidden_act {activation} is not supported, only silu{ELSE}")
    refuse_weights(config)
    heads = _number(config, "num_attention_heads")
    hidden = _number(config, "hidden_size")
    rope = _rope(config)
    fields = {
        "architecture": architecture,
        "vocab_size": _number(config, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": _number(config, "intermediate_size"),
        "num_layers": _number(config, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden // heads,
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "rope": rope,
        "tie_embeddings": bool(config.get("tie_word_embeddings")),
        "dtype": config.get("dtype") or config.get("torch_dtype") or "float32",
        "eos_ids": eos_ids(eos),
    } | MODELS[architecture](config)
    position = _number(config, "max_position_embeddings")
    if rope.kind == "yarn":  # configs name the length before scaling, or the one after it
        position = max(position, int(rope.original_max_position * rope.factor))
    if window := fields.get("sliding_window"):
        position = min(position, window)  # within the window it equals full attention
    spec = _convert(fields | {"max_position": position}, ModelSpec)
    if spec.num_heads % spec.num_kv_heads or spec.head_dim % 2:
        raise ValueError(
            f"config.json: {spec.num_heads} heads on {spec.num_kv_heads} K/V heads of "
            f"{spec.head_dim} do not fit: groups must be equal and the head size even"
        )
    return spec


def _architecture(config: Fields) -> str:
    name: str = (config.get("architectures") or ["(none)"])[0]
    return name


def refuse_weights(config: Fields) -> None:
    """Raise ValueError with a sentence for weights in a form that nothing here reads."""
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "unknown")
        if method != BLOCKS:
            raise ValueError(
                f"config.json: the weights are quantised ({method}); use the checkpoint in"
                " bfloat16, float16 or float32"
            )
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    if dtype not in DTYPES:
        raise ValueError(f"config.json: dtype {dtype} is not supported, only {', '.join(DTYPES)}")


def _rope(config: Fields) -> Rope:
    """From `rope_parameters` (transformers 5), else `rope_theta` and `rope_scaling` (4)."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = parameters.get("rope_theta") or config.get("rope_theta") or 10000.0
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in ROPE_KINDS:
        raise ValueError(
            f"config.json: rope type {kind} is not supported, only {', '.join(ROPE_KINDS)}{ELSE}"
        )
    partial = parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise ValueError(
            f"config.json: partial_rotary_factor {partial} is not supported, only 1.0{ELSE}"
        )
    if kind == "default":
        return Rope(theta=theta)
    position = _number(config, "max_position_embeddings")
    original = parameters.get("original_max_position_embeddings") or position
    given = {name: parameters[name] for name in Rope.__struct_fields__ if parameters.get(name)}
    given |= {"theta": theta, "kind": kind, "original_max_position": original}
    given["truncate"] = parameters.get("truncate", True)
    if "factor" not in given:
        if kind != "yarn":
            raise ValueError(f"config.json: rope type {kind} needs a factor")
        given["factor"] = position / original
    return _convert(given, Rope)


def _convert(fields: Fields, kind: type[T]) -> T:
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"config.json: {error}") from None


def _number(config: Fields, name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"config.json: {name} must be a positive whole number, not {value!r}")
    return value


def _read_json(path: Path) -> Fields:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(
            f"{path} is missing: the folder is not a Hugging Face checkpoint"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content
