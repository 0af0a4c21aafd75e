"""A decoder in transformers' own code, with our attention in it: `--model-impl transformers`.

transformers lets a model's attention be replaced by name. Ours hands a step's keys and values to
the worker, whose pages are the only state; the model itself keeps none. What cannot be served like
that is refused, by its config before weights are read, else by trying it out (`probe`). Called by
the worker when it starts.
"""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig

from radixserve.models.load import DUMMY, complain
from radixserve.models.model import Attend
from radixserve.models.probe import PROBE, Network, head_of, hidden_states, probe
from radixserve.models.spec import ModelShape, eos_ids, read_config, read_eos, refuse_weights
from radixserve_kernels.attention_options import Options

LAYER_TYPES = {"full_attention", "sliding_attention"}


class TransformersModel:
    """A `Model`. Inference only; launched kernel by kernel."""

    capturable: ClassVar[bool] = False

    def __init__(
        self,
        network: Network,
        spec: ModelShape,
        options: Sequence[Options],
        *,
        context_length: int,
        detail: str,
    ) -> None:
        """`network`: calls ATTENTION in layers that want `options`."""
        self._network = network
        self._head = head_of(network)
        self.spec = spec
        self.options = options
        self.context_length = context_length
        self.detail = detail
        self.weight_bytes = sum(t.nbytes for t in (*network.parameters(), *network.buffers()))

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Attend, wanted: Tensor) -> Tensor:
        """As `Model` says."""
        return self.logits(self.hidden(tokens, positions, attend, wanted))

    @torch.inference_mode()
    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend, wanted: Tensor) -> Tensor:
        """As `Model` says."""

        def by_pages(
            module: Any, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object
        ) -> tuple[Tensor, None]:
            # [1, heads, T, D], with strides that may follow T: a kernel is compiled for its strides
            q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
            mixed = attend(module.layer_idx, torch.cat((q, k), 1), v.contiguous(), None)
            return mixed[None], None

        ids, places = tokens.long()[None], positions.long()[None]
        return hidden_states(self._network, ids, places, by_pages)[0].index_select(0, wanted)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """As `Model` says."""
        logits: Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0].float()


def load_transformers(
    folder: Path,
    *,
    device: str,
    dtype: torch.dtype,
    context_length: int,
    load_format: str = "auto",
) -> TransformersModel:
    """The model in `folder`, as `load.load` has it. Weights pass through the host's memory.

    Raises ValueError with a sentence for what pages of K/V cannot serve, and for tensors that are
    missing or unexpected.
    """
    fields = read_config(folder)
    refuse_weights(fields)
    transformers.utils.logging.disable_progress_bar()
    config = _config(folder)
    kind = _model_class(config, fields)
    limit, detail = max_position(config)
    if not 0 <= context_length <= (limit or context_length):
        raise ValueError(f"context length {context_length} is more than the model allows ({limit})")
    if not (length := context_length or limit):
        raise ValueError("config.json does not say how long a text may be: give --context-length")
    network = _network(kind, config, folder, dtype, load_format).to(device).eval()
    found = probe(network, length)
    spec = ModelShape(
        architecture=kind.__name__,
        vocab_size=found.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=_widest(network, config),
        num_layers=len(found.options),
        num_heads=found.num_heads,
        num_kv_heads=found.num_kv_heads,
        head_dim=found.head_dim,
        eos_ids=eos_ids(read_eos(folder, fields)),
    )
    return TransformersModel(network, spec, found.options, context_length=length, detail=detail)


def check_config(folder: Path) -> None:
    """Raises ValueError with a sentence for what its config says that pages cannot serve."""
    fields = read_config(folder)
    refuse_weights(fields)
    _model_class(_config(folder), fields)


def _config(folder: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, OSError) as error:
        raise ValueError(
            f"{folder}/config.json is of no model that transformers {transformers.__version__}"
            f" knows: {error}"
        ) from None


def _model_class(config: Any, fields: dict[str, Any]) -> Any:
    """The class that computes such a checkpoint; ValueError if its config says that it cannot."""
    classes = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    name = (fields.get("architectures") or [""])[0]
    what = name or f"model type {config.model_type}"
    if config.is_encoder_decoder:
        raise ValueError(f"{what} has an encoder: only decoders are served")
    if config.get_text_config() is not config:
        parts = ", ".join(part.removesuffix("_config") for part in config.sub_configs)
        raise ValueError(f"{what} is made of several models ({parts}): only text models are served")
    if type(config) not in classes:
        raise ValueError(f"{what} is no causal language model of transformers")
    kind = classes[type(config)]
    if name not in ("", kind.__name__):
        raise ValueError(f"{what} is no causal language model; of this type it is {kind.__name__}")
    if kind._is_stateful:
        raise ValueError(f"{what} keeps a state that is not keys and values of tokens")
    if others := set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES:
        raise ValueError(
            f"{what} has layers of type {', '.join(sorted(others))}: only those of type"
            " full_attention and sliding_attention can be served from pages"
        )
    if getattr(config, "num_kv_shared_layers", None):
        raise ValueError(f"{what} has layers that share keys and values")
    if not kind._supports_attention_backend:
        raise ValueError(f"{what} does not let its attention be replaced")
    if "position_ids" not in inspect.signature(kind.forward).parameters:
        raise ValueError(f"{what} does not take position_ids")
    return kind


def max_position(config: Any) -> tuple[int, str]:
    """Tokens that a text may have, 0: not said; and why it was cut, if it was.

    Rotary frequencies that change with the length of a text are known to its first tokens only
    later, when their keys are in pages: up to where they change is what can be served.
    """
    limit, detail = getattr(config, "max_position_embeddings", None) or 0, ""
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in [ropes] if "rope_type" in ropes else ropes.values():
        kind = rope.get("rope_type")
        original = rope.get("original_max_position_embeddings") or limit
        if kind == "yarn":  # configs name the length before scaling, or the one after it
            limit = max(limit, int(original * (rope.get("factor") or 1)))
        if kind in ("longrope", "dynamic") and original < limit:
            limit, detail = original, "the model changes its rotary frequencies beyond"
    return limit, detail


def _network(kind: Any, config: Any, folder: Path, dtype: torch.dtype, load_format: str) -> Network:
    """The model with its weights on the host; its attention is PROBE."""
    if load_format == DUMMY:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return kind._from_config(config, dtype=dtype, attn_implementation=PROBE)
    network, info = kind.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        attn_implementation=PROBE,
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    complain(folder, "has no tensor", list(info["missing_keys"]))
    complain(folder, "has tensors this architecture does not know:", list(info["unexpected_keys"]))
    return network


def _widest(network: Network, config: Any) -> int:
    """The largest input or output of a layer's products for one token, all its experts together."""
    tables = [m for m in network.modules() if isinstance(m, torch.nn.Embedding)]
    others = {id(m.weight) for m in (*tables, network.get_output_embeddings()) if m is not None}
    widths = [max(p.shape[-2:]) for p in network.parameters() if id(p) not in others]
    return int(max(widths) * (getattr(config, "num_experts_per_tok", None) or 1))
