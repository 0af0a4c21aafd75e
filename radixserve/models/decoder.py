"""Our own model: the decoder-only transformer that every architecture in `MODELS` is one of.

Differences between families are fields of `ModelSpec`, not classes. It knows no pages: the worker
passes `attend`, which rotates queries and keys, writes keys and values and reads them back. It
computes the tokens of one step, whichever requests they belong to. Built and filled by `load`,
called by the worker.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from radixserve.models import operators as ops
from radixserve.models.blocks import Blocks
from radixserve.models.model import Attend
from radixserve.models.operators import TORCH, Operators, Packed, Run, Table
from radixserve.models.product import Product
from radixserve.models.rotary import interleave, rotary_table, rotation
from radixserve.models.spec import ModelSpec
from radixserve_kernels.attention_options import Options

EMBEDDING = "model.embed_tokens.weight"
TABLE = "table"  # the embedding, where it is packed


class Layer(nn.Module):
    """Weights of one layer, those that read the same input joined so that one product serves all.

    `qkv` has (heads + 2 * K/V heads) * D outputs, `gate_up` 2 * intermediate.
    """

    attention_norm: Tensor
    qk_norm: Tensor | None
    mlp_norm: Tensor

    def __init__(
        self, spec: ModelSpec, empty: Callable[..., nn.Parameter], operators: Operators
    ) -> None:
        super().__init__()

        def product(outputs: int, inputs: int, *, bias: bool, gated: bool = False) -> Product:
            weight, own = empty(outputs, inputs), empty(outputs) if bias else None
            return Product(weight, own, operators, gated=gated)

        hidden, inner = spec.hidden_size, spec.intermediate_size
        q_size = spec.num_heads * spec.head_dim
        qkv_size = q_size + 2 * spec.num_kv_heads * spec.head_dim
        self.attention_norm = empty(hidden)
        self.qkv = product(qkv_size, hidden, bias=spec.qkv_bias)
        # one row per query and key head, so that one product scales both
        rotated_heads = spec.num_heads + spec.num_kv_heads
        self.qk_norm = empty(rotated_heads, spec.head_dim) if spec.qk_norm else None
        self.output = product(hidden, q_size, bias=spec.o_bias)
        self.mlp_norm = empty(hidden)
        self.gate_up = product(2 * inner, hidden, bias=spec.mlp_bias, gated=True)
        self.down = product(hidden, inner, bias=spec.mlp_bias)


class Decoder(nn.Module):
    """A `Model`. Inference only. Weights are allocated once, uninitialised; `load` fills them."""

    capturable: ClassVar[bool] = True
    embedding: nn.Parameter | None  # None once it is packed
    norm: nn.Parameter
    rotary: Tensor
    weight_bytes: int  # of all weights, in the form they are used in

    def __init__(
        self,
        spec: ModelSpec,
        *,
        device: str,
        dtype: torch.dtype,
        context_length: int,
        operators: Operators = TORCH,
    ) -> None:
        super().__init__()

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype), requires_grad=False)

        self.spec = spec
        self.context_length = context_length
        self._operators = operators
        self.embedding = embedding = empty(spec.vocab_size, spec.hidden_size)
        self._joined_layers: Run | None = None
        self._table: Table | None = None
        self._table_kind = ""  # of the embedding's blocks, if it has some
        self.layers = nn.ModuleList(Layer(spec, empty, operators) for _ in range(spec.num_layers))
        self.norm = empty(spec.hidden_size)
        head = empty(spec.vocab_size, spec.hidden_size) if not spec.tie_embeddings else None
        self.head = Product(embedding if head is None else head, None, operators)
        table = rotary_table(spec.rope, spec.head_dim, context_length)
        self.register_buffer("rotary", table.to(device), persistent=False)

    @torch.inference_mode()
    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, wanted: Tensor) -> Tensor:
        """As `Model` says of a call."""
        return self.logits(self.hidden(tokens, positions, attend, wanted))

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend, wanted: Tensor) -> Tensor:
        """As `Model` says."""
        spec = self.spec
        rotated_heads = spec.num_heads + spec.num_kv_heads
        turn = rotation(self.rotary, positions)
        x = self._embedded(tokens)  # from here on added to in place
        normed = self._normed(x, cast(Layer, self.layers[0]).attention_norm)
        if self._joined_layers is not None and (sight := getattr(attend, "sight", None)):
            return self._joined_layers(x, normed, turn, sight, wanted)
        for i, (layer, next_norm) in enumerate(self._with_next_norms()):
            qkv = layer.qkv(normed).view(-1, rotated_heads + spec.num_kv_heads, spec.head_dim)
            qk = qkv[:, :rotated_heads]
            if layer.qk_norm is not None:
                qk = self._normed(qk, layer.qk_norm)
            mixed = attend(i, qk, qkv[:, rotated_heads:], turn).flatten(1)
            if i == spec.num_layers - 1:  # from here on a token's result serves nobody else
                x, mixed = x.index_select(0, wanted), mixed.index_select(0, wanted)
            normed = self._normed(layer.output(mixed), layer.mlp_norm, x)
            normed = self._normed(layer.down(layer.gate_up(normed)), next_norm, x)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """As `Model` says."""
        logits: Tensor = self.head(hidden)
        return logits.float()

    @property
    def options(self) -> Sequence[Options]:
        return [Options(self.spec.head_dim**-0.5)] * self.spec.num_layers

    @property
    def detail(self) -> str:
        window = "the model slides its window beyond, which needs --model-impl transformers"
        return window if self.spec.sliding_window else ""

    def _embedded(self, tokens: Tensor) -> Tensor:
        if self._table is not None:
            return self._table.rows(tokens.long())
        assert self.embedding is not None, "it is packed or plain"
        return self.embedding.index_select(0, tokens)

    def _with_next_norms(self) -> list[tuple[Layer, Tensor]]:
        """Each layer with the weights of the norm behind it: the next layer's, or the model's."""
        layers = list(self._layers())
        next_norms = [*(layer.attention_norm for layer in layers[1:]), self.norm]
        return list(zip(layers, next_norms, strict=True))

    def _layers(self) -> Iterable[Layer]:
        return cast(Iterable[Layer], self.layers)

    def _normed(self, x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
        """x normalised, or if given the residual stream, once x is added to it."""
        return self._operators.rms_norm(x, weight, self.spec.rms_norm_eps, residual)

    def prepare(self) -> None:
        """Bring the weights, all filled as checkpoints have them, into the form used here."""
        with torch.inference_mode():
            for layer in self._layers():
                self._interleave(layer)
            for module in self.modules():
                if isinstance(module, Product) and module is not self.head:
                    module.pack()
            self._pack_vocabulary()
        self._finish()

    def packed_parts(self) -> tuple[dict[str, Packed], dict[str, Tensor]]:
        """Of a prepared decoder: what was packed, by name, and the weights that stay plain."""
        parts = {
            name: module.form()
            for name, module in self.named_modules()
            if isinstance(module, Product) and module.packed is not self._table
        }
        if self._table is not None:
            parts[TABLE] = self._table
        return parts, dict(self.named_parameters())

    def take_packed(self, parts: Mapping[str, Packed], plain: Mapping[str, Tensor]) -> None:
        """Have what `packed_parts` told of another decoder, in place of being filled."""
        for name, product in self.named_modules():
            if isinstance(product, Product) and name in parts:
                product.take(parts[name])
        if TABLE in parts:
            self._table = cast(Table, parts[TABLE])
            self.embedding = None
            if self.spec.tie_embeddings:
                self.head.take(self._table)
        with torch.inference_mode():
            for name, weight in self.named_parameters():
                weight.copy_(plain[name])
        self._finish()

    def _finish(self) -> None:
        """With all weights in the form they are used in."""
        if (join := self._operators.join) is not None:
            self._joined_layers = join(self._operands(), self._shape())
        packed = [m.packed for m in self.modules() if isinstance(m, Product)]
        held: list[Packed | Tensor | None] = [*packed, self._table, *self.parameters()]
        sizes = {id(part): part.nbytes for part in held if part is not None}
        self.weight_bytes = sum(sizes.values())

    def _shape(self) -> ops.Shape:
        spec = self.spec
        return ops.Shape(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.rms_norm_eps)

    def _operands(self) -> list[ops.Layer]:
        """The layers as `Operators.join` wants them."""
        found = []
        for layer, next_norm in self._with_next_norms():
            found.append(
                ops.Layer(
                    qkv=layer.qkv.form(),
                    output=layer.output.form(),
                    gate_up=layer.gate_up.form(),
                    down=layer.down.form(),
                    qk_norm=layer.qk_norm,
                    mlp_norm=layer.mlp_norm,
                    next_norm=next_norm,
                )
            )
        return found

    def _pack_vocabulary(self) -> None:
        """Embedding and head: one copy if they are the same and may be, else what each needs."""
        pack = self._operators.pack_table
        if pack is not None:
            assert self.embedding is not None, "weights are packed once"
            kind = self._table_kind
            self._table = pack(Blocks(self.embedding, kind) if kind else self.embedding)
            self.embedding = None
            if self.spec.tie_embeddings:
                self.head.take(self._table)
        self.head.pack()

    def _interleave(self, layer: Layer) -> None:
        head_dim = self.spec.head_dim
        rows = (self.spec.num_heads + self.spec.num_kv_heads) * head_dim
        for whole in (layer.qkv.weight, layer.qkv.bias):
            if whole is not None:
                whole[:rows] = interleave(whole[:rows], head_dim)
        if layer.qk_norm is not None:
            layer.qk_norm.copy_(
                interleave(layer.qk_norm.flatten(), head_dim).view_as(layer.qk_norm)
            )

    def checkpoint_tensors(self) -> dict[str, list[Tensor]]:
        """Name in a Hugging Face checkpoint -> the views of this model's weights that it fills.

        More than one view only for the weights of the query and key norm, which every head shares.
        """
        assert self.embedding is not None, "weights are filled before they are packed"
        named: dict[str, list[Tensor]] = {
            EMBEDDING: [self.embedding],
            "model.norm.weight": [self.norm],
        }
        if not self.spec.tie_embeddings and self.head.weight is not None:
            named["lm_head.weight"] = [self.head.weight]
        for i, layer in enumerate(self._layers()):
            for name, views in self._layer_tensors(layer).items():
                named[f"model.layers.{i}.{name}"] = views
        return named

    def take(self, blocks: Mapping[str, Blocks]) -> set[str]:
        """Fill weights, named as in `checkpoint_tensors`, with blocks as they are.

        Returns the names of those that are filled; the others have to become numbers: what the
        operators have no code for, and what is joined with weights of another kind.
        """
        if not self._operators.takes_blocks:
            return set()
        taken = set()
        for names, product in self._joined():
            found = [blocks[name] for name in names if name in blocks]
            if len(found) == len(names) and len({part.kind for part in found}) == 1:
                product.fill(Blocks(torch.cat([part.data for part in found]), found[0].kind))
                taken |= set(names)
        if EMBEDDING in blocks:
            data, self._table_kind = blocks[EMBEDDING]
            self.embedding = nn.Parameter(data, requires_grad=False)
            taken.add(EMBEDDING)
        return taken

    def _joined(self) -> Iterator[tuple[list[str], Product]]:
        """Names of the weights that make up each product, in order."""
        if not self.spec.tie_embeddings:
            yield ["lm_head.weight"], self.head
        for i, layer in enumerate(self._layers()):
            for names, _, product in self._parts(layer):
                yield [f"model.layers.{i}.{name}.weight" for name in names], product

    def _layer_tensors(self, layer: Layer) -> dict[str, list[Tensor]]:
        named: dict[str, list[Tensor]] = {
            "input_layernorm.weight": [layer.attention_norm],
            "post_attention_layernorm.weight": [layer.mlp_norm],
        }
        for names, sizes, product in self._parts(layer):
            for kind, whole in (("weight", product.weight), ("bias", product.bias)):
                if whole is not None:
                    parts = torch.split(whole, list(sizes))
                    named |= {f"{n}.{kind}": [p] for n, p in zip(names, parts, strict=True)}
        if layer.qk_norm is not None:
            named["self_attn.q_norm.weight"] = list(layer.qk_norm[: self.spec.num_heads])
            named["self_attn.k_norm.weight"] = list(layer.qk_norm[self.spec.num_heads :])
        return named

    def _parts(self, layer: Layer) -> Sequence[tuple[tuple[str, ...], tuple[int, ...], Product]]:
        """Names and numbers of outputs of what each product joins."""
        spec = self.spec
        q, kv, inner = (
            spec.num_heads * spec.head_dim,
            spec.num_kv_heads * spec.head_dim,
            spec.intermediate_size,
        )
        return (
            (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), (q, kv, kv), layer.qkv),
            (("self_attn.o_proj",), (spec.hidden_size,), layer.output),
            (("mlp.gate_proj", "mlp.up_proj"), (inner, inner), layer.gate_up),
            (("mlp.down_proj",), (spec.hidden_size,), layer.down),
        )
