"""The one decoder-only transformer that every supported architecture is an instance of.

Differences between families are fields of `ModelSpec`, not classes. It knows no pages: the worker
passes `attend`, which writes keys and values and reads them back. It computes the tokens of one
step, whichever requests they belong to. Built and filled by `load`, called by the worker.
"""

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from radixserve.models.rotary import rotary_table, rotate, rotation
from radixserve.models.spec import ModelSpec

# (layer, q [T, heads, D], k [T, K/V heads, D], v [T, K/V heads, D]) -> [T, heads, D]
# q, k and v are views: the last two dimensions are dense, tokens lie further apart
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Layer(nn.Module):
    """Weights of one layer, those that read the same input joined so that one product serves all.

    `qkv` is [(heads + 2 * K/V heads) * D, hidden], `gate_up` [2 * intermediate, hidden].
    """

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None

    def __init__(self, spec: ModelSpec, empty: Callable[..., nn.Parameter]) -> None:
        super().__init__()
        hidden, inner = spec.hidden_size, spec.intermediate_size
        q_size = spec.num_heads * spec.head_dim
        qkv_size = q_size + 2 * spec.num_kv_heads * spec.head_dim
        self.attention_norm = empty(hidden)
        self.qkv = empty(qkv_size, hidden)
        self.qkv_bias = empty(qkv_size) if spec.qkv_bias else None
        # one row per query and key head, so that one product scales both
        rotated_heads = spec.num_heads + spec.num_kv_heads
        self.qk_norm = empty(rotated_heads, spec.head_dim) if spec.qk_norm else None
        self.output = empty(hidden, q_size)
        self.output_bias = empty(hidden) if spec.o_bias else None
        self.mlp_norm = empty(hidden)
        self.gate_up = empty(2 * inner, hidden)
        self.gate_up_bias = empty(2 * inner) if spec.mlp_bias else None
        self.down = empty(hidden, inner)
        self.down_bias = empty(hidden) if spec.mlp_bias else None


class Decoder(nn.Module):
    """Inference only. Weights are allocated once, uninitialised; `load` fills them."""

    embedding: Tensor
    norm: Tensor
    head: Tensor
    rotary: Tensor

    def __init__(
        self, spec: ModelSpec, *, device: str, dtype: torch.dtype, context_length: int
    ) -> None:
        super().__init__()

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype), requires_grad=False)

        self.spec = spec
        self.context_length = context_length
        self.embedding = empty(spec.vocab_size, spec.hidden_size)
        self.layers = nn.ModuleList(Layer(spec, empty) for _ in range(spec.num_layers))
        self.norm = empty(spec.hidden_size)
        self.head = self.embedding
        if not spec.tie_embeddings:
            self.head = empty(spec.vocab_size, spec.hidden_size)
        table = rotary_table(spec.rope, spec.head_dim, context_length)
        self.register_buffer("rotary", table.to(device), persistent=False)

    @torch.inference_mode()
    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, wanted: Tensor) -> Tensor:
        """Logits [S, vocab] float32 after the tokens at indices `wanted` [S] of this step.

        `tokens` and `positions` are [T] int64; a position counts from the start of its request and
        is below `context_length`. `attend` is called once per layer, in order, with all T tokens.
        """
        spec = self.spec
        heads, rotated_heads = spec.num_heads, spec.num_heads + spec.num_kv_heads
        cos, sin = rotation(self.rotary, positions)
        x = self.embedding.index_select(0, tokens)
        for i, layer in enumerate(self._layers()):
            qkv = F.linear(self._normed(x, layer.attention_norm), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(-1, rotated_heads + spec.num_kv_heads, spec.head_dim)
            qk = qkv[:, :rotated_heads]
            if layer.qk_norm is not None:
                qk = F.rms_norm(qk, (spec.head_dim,), None, spec.rms_norm_eps) * layer.qk_norm
            qk = rotate(qk, cos, sin)
            mixed = attend(i, qk[:, :heads], qk[:, heads:], qkv[:, rotated_heads:]).flatten(1)
            if i == spec.num_layers - 1:  # from here on a token's result serves nobody else
                x, mixed = x.index_select(0, wanted), mixed.index_select(0, wanted)
            x = _add_product(x, mixed, layer.output, layer.output_bias)
            gate, up = F.linear(
                self._normed(x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias
            ).chunk(2, dim=-1)
            x = _add_product(x, F.silu(gate).mul_(up), layer.down, layer.down_bias)
        return F.linear(self._normed(x, self.norm), self.head).float()

    def _layers(self) -> Iterable[Layer]:
        return cast(Iterable[Layer], self.layers)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.spec.rms_norm_eps)

    def checkpoint_tensors(self) -> dict[str, list[Tensor]]:
        """Name in a Hugging Face checkpoint -> the views of this model's weights that it fills.

        More than one view only for the weights of the query and key norm, which every head shares.
        """
        named: dict[str, list[Tensor]] = {
            "model.embed_tokens.weight": [self.embedding],
            "model.norm.weight": [self.norm],
        }
        if not self.spec.tie_embeddings:
            named["lm_head.weight"] = [self.head]
        for i, layer in enumerate(self._layers()):
            for name, views in self._layer_tensors(layer).items():
                named[f"model.layers.{i}.{name}"] = views
        return named

    def _layer_tensors(self, layer: Layer) -> dict[str, list[Tensor]]:
        spec = self.spec
        q, kv, inner = (
            spec.num_heads * spec.head_dim,
            spec.num_kv_heads * spec.head_dim,
            spec.intermediate_size,
        )
        joined = (
            (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), (q, kv, kv), "qkv"),
            (("self_attn.o_proj",), (spec.hidden_size,), "output"),
            (("mlp.gate_proj", "mlp.up_proj"), (inner, inner), "gate_up"),
            (("mlp.down_proj",), (spec.hidden_size,), "down"),
        )
        named: dict[str, list[Tensor]] = {
            "input_layernorm.weight": [layer.attention_norm],
            "post_attention_layernorm.weight": [layer.mlp_norm],
        }
        for names, sizes, attribute in joined:
            for kind, suffix in (("weight", ""), ("bias", "_bias")):
                whole = getattr(layer, attribute + suffix)
                if whole is not None:
                    parts = whole.split(sizes)
                    named |= {f"{n}.{kind}": [p] for n, p in zip(names, parts, strict=True)}
        if layer.qk_norm is not None:
            named["self_attn.q_norm.weight"] = list(layer.qk_norm[: spec.num_heads])
            named["self_attn.k_norm.weight"] = list(layer.qk_norm[spec.num_heads :])
        return named


def _add_product(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x + y @ weight.T (+ bias), with the first sum inside the product."""
    total = torch.addmm(x, y, weight.t())
    return total if bias is None else total.add_(bias)
