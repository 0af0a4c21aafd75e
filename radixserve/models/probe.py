"""Finds out whether pages of K/V can stand for all that a model of transformers remembers.

Not looked up in a list of families: two tokens go through the model, with an attention in which
each sees only itself. Every layer must call it once, and a token's queries, keys and values must be
the same whatever stands beside it. What each layer wants of attention is what it asks for here.
Called by `transformers_model`.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from radixserve_kernels.attention_options import Options

Network = Any  # a causal language model of transformers, which has no types

ATTENTION = "radixserve"  # attention that its caller passes along, and no masks
PROBE = "radixserve-probe"  # the same, and masks for some queries
QUERIES = 64  # at most, over the whole context
# of the norm: rounding, which in 16 bits may now and then change which expert a token goes to
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
# what models pass to attention and what does not change it, or stands in the mask
HARMLESS = {"dropout", "is_causal", "sliding_window", "position_ids", "output_router_logits"}


class Found(Struct, frozen=True):
    """What the worker has to know about a model. `options` has one entry per layer."""

    options: tuple[Options, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int


class Call(Struct, frozen=True):
    """What a layer passed to attention: q, k and v are [heads, T, D]."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None  # [queries, context]
    scale: float
    softcap: float

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Numbers of query heads and of K/V heads, sizes of keys and of values."""
        return len(self.query), len(self.key), self.key.shape[-1], self.value.shape[-1]

    def of(self, token: int) -> Tensor:
        """All numbers of one token."""
        parts = (self.query[:, token], self.key[:, token], self.value[:, token])
        return torch.cat([part.flatten() for part in parts])


class Recorder:
    """An attention in which tokens see only themselves, and that remembers its calls by layer."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        **others: object,
    ) -> tuple[Tensor, None]:
        asked = {name for name, given in others.items() if given is not None and given is not False}
        if unknown := sorted(asked - HARMLESS):
            raise ValueError(f"its attention needs {', '.join(unknown)}, which pages do not serve")
        layer = getattr(module, "layer_idx", None)
        if layer is None or layer in self.calls:
            raise ValueError("its layers do not call attention once each")
        self.calls[layer] = Call(
            query[0],
            key[0],
            value[0],
            None if attention_mask is None else attention_mask[0, 0],
            query.shape[-1] ** -0.5 if scaling is None else float(scaling),
            float(softcap or 0),
        )
        groups = query.shape[1] // key.shape[1]
        return value.repeat_interleave(groups, 1).transpose(1, 2).contiguous(), None


class _States:
    """The output of a network without its head, of which nothing else is known."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        """The fields of each family's own output."""


class _Given(torch.nn.Module):
    """Stands in for all of a network before its head, where what that gives is known."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> _States:
        return _States(inputs_embeds)


def hidden_states(
    network: Network, tokens: Tensor, positions: Tensor, attend: Callable[..., object]
) -> Tensor:
    """What tokens and positions, both [1, T], give the head: [1, T, hidden size]."""
    states: Tensor = network.base_model(
        input_ids=tokens, position_ids=positions, use_cache=False, attend=attend
    ).last_hidden_state
    return states


def head_of(network: Network) -> Network:
    """What makes logits of `inputs_embeds` that are hidden states, with the network's own code."""
    head = copy.copy(network)
    head._modules = network._modules | {network.base_model_prefix: _Given()}
    return head


def _given(
    module: Any, *tensors: Tensor, attend: Callable[..., object] | None = None, **options: object
) -> object:
    """The attention that `attend` says, which models hand through all their layers."""
    if attend is None:
        raise ValueError("it does not hand to its layers what it is called with")
    return attend(module, *tensors, **options)


def _some_rows(
    *, kv_length: int, mask_function: Callable[..., Tensor], device: torch.device, **_: object
) -> Tensor:
    """[1, 1, queries, kv_length] bool: what `_queries` see."""
    here = torch.zeros((1, 1, 1, 1), dtype=torch.long, device=device)
    queries = _queries(kv_length, device)[:, None]
    seen = mask_function(here, here, queries, torch.arange(kv_length, device=device))
    return seen.expand(1, 1, len(queries), kv_length)


def _queries(length: int, device: torch.device | str) -> Tensor:
    """Positions of a text of `length` tokens, the last one among them, each once."""
    places = torch.linspace(0, length - 1, min(QUERIES, length), dtype=torch.float64)
    return places.round().long().to(device)


AttentionInterface.register(ATTENTION, _given)
AttentionInterface.register(PROBE, _given)
AttentionMaskInterface.register(PROBE, _some_rows)


@torch.inference_mode()
def probe(network: Network, context_length: int) -> Found:
    """Raises ValueError with a sentence if the model cannot be served. Its attention is PROBE."""
    name = type(network).__name__
    try:
        return _probe(network, context_length)
    except Exception as error:  # whatever its code makes of an attention that is not its own
        raise ValueError(f"{name} cannot be served from pages of K/V: {error}") from error


def _probe(network: Network, context_length: int) -> Found:
    vocab_size = network.get_input_embeddings().num_embeddings
    first, second = vocab_size // 3, vocab_size // 2
    early, late = (context_length - 1) // 3, context_length - 1

    def run(tokens: list[int], positions: list[int], **more: object) -> tuple[Recorder, Tensor]:
        recorder = Recorder()
        inputs = torch.tensor([tokens, positions], device=network.device)[:, None]
        logits = network(
            input_ids=inputs[0],
            position_ids=inputs[1],
            use_cache=False,
            attend=recorder,
            **more,
        ).logits
        return recorder, logits

    whole = torch.ones((1, context_length), dtype=torch.long, device=network.device)
    alone, logits = run([first], [early], attention_mask=whole)
    calls = list(_in_order(alone, network.config.num_hidden_layers))
    options = tuple(Options(c.scale, c.softcap, _window(i, c.mask)) for i, c in enumerate(calls))
    network.set_attn_implementation(ATTENTION)
    both, told = run([first, second], [early, late])
    behind, _ = run([second], [late])
    _check_independent(alone, both, 0)
    _check_independent(behind, both, 1)
    inputs = torch.tensor([[first, second], [early, late]], device=network.device)[:, None]
    states = hidden_states(network, inputs[0], inputs[1], Recorder())
    if not torch.equal(head_of(network)(inputs_embeds=states, use_cache=False).logits, told):
        raise ValueError("its head needs more than its last layer's states")
    num_heads, num_kv_heads, head_dim, _ = calls[0].shape
    return Found(options, num_heads, num_kv_heads, head_dim, logits.shape[-1])


def _in_order(recorder: Recorder, num_layers: int) -> list[Call]:
    """The calls of all layers, which have K/V of one shape."""
    if missing := sorted(set(range(num_layers)) - recorder.calls.keys()):
        raise ValueError(f"layers {missing} keep something else than K/V, or share another's")
    if list(recorder.calls) != list(range(num_layers)):
        raise ValueError(f"its layers call attention in the order {list(recorder.calls)}")
    calls = list(recorder.calls.values())
    shapes = sorted({call.shape for call in calls})
    if len(shapes) > 1:
        raise ValueError(
            "its layers differ in (heads, K/V heads, size of keys, size of values): "
            + ", ".join(str(shape) for shape in shapes)
        )
    (heads, kv_heads, key_size, value_size) = shapes[0]
    if key_size != value_size or heads % kv_heads:
        raise ValueError(
            f"its {heads} heads on {kv_heads} K/V heads have keys of {key_size} and values of"
            f" {value_size} numbers: pages hold keys and values of one size"
        )
    return calls


def _window(layer: int, mask: Tensor | None) -> int:
    """How many of the last tokens a layer sees by its `mask`; 0: all before it, too."""
    if mask is None or mask.dtype != torch.bool:
        raise ValueError(f"layer {layer} does not tell what a token sees by a plain mask")
    length = mask.shape[-1]
    query, seen = _queries(length, mask.device)[:, None], torch.arange(length, device=mask.device)
    window = int(mask[-1].sum())
    if mask.shape[0] != len(query) or not mask.equal((seen <= query) & (seen > query - window)):
        raise ValueError(f"layer {layer} does not see all tokens before it, nor the last so many")
    return 0 if window == length else window


def _check_independent(alone: Recorder, both: Recorder, token: int) -> None:
    """`alone` is a token by itself, `token` the same one in `both`."""
    for layer, call in alone.calls.items():
        other = both.calls[layer]
        a, b = call.of(0).float(), other.of(token).float()
        near = bool((a - b).norm() <= TOLERANCE[call.key.dtype] * a.norm())
        if not near or (call.scale, call.softcap) != (other.scale, other.softcap):
            raise ValueError(
                f"what layer {layer} computes of a token depends on others beside it, not only on"
                " its position and on what it attends to"
            )
