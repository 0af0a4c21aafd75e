"""All layers of a decoder in one call, for steps in which Python's time between calls counts.

The twin is what `models/decoder.py` does with the operators one by one: the bits are the same.
"""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_float, c_int64, c_void_p
from typing import NamedTuple

import torch

from radixserve_kernels.attention_options import Options
from radixserve_kernels.cpu.attention import AttentionPlan
from radixserve_kernels.cpu.library import kernels
from radixserve_kernels.cpu.linear import KINDS, PLAIN, SILU_MUL, PackedLinear, num_panels


class LayerWeights(NamedTuple):
    """What a layer multiplies and scales by. The norm before its first product is not in it."""

    qkv: PackedLinear  # queries, keys and values of all heads, one after another
    output: PackedLinear
    gate_up: PackedLinear  # packed as such
    down: PackedLinear
    qk_norm: torch.Tensor | None  # [heads + K/V heads, head_size]
    mlp_norm: torch.Tensor  # [hidden]
    next_norm: torch.Tensor  # [hidden], before the next layer's products, or the head's


class Sight(NamedTuple):
    """What the layers' attention reads and writes in a step; a plan, pages and options for each."""

    plans: Sequence[AttentionPlan]
    pages: Sequence[torch.Tensor]
    options: Sequence[Options]
    slots: torch.Tensor  # [T] int32 or int64, as of `rope_kv_write`


class _Product(ctypes.Structure):
    _fields_ = [
        ("weight", c_void_p),
        ("bias", c_void_p),
        *((name, c_int64) for name in ("kind", "inputs", "panels", "columns", "mode")),
    ]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, _Product) for name in ("qkv", "output", "gate_up", "down")),
        *((name, c_void_p) for name in ("qk_norm", "mlp_norm", "next_norm")),
    ]


class _Sight(ctypes.Structure):
    _fields_ = [
        ("plan", c_void_p),
        ("pages", c_void_p),
        ("scale", c_float),
        ("softcap", c_float),
    ]


WRONG = ("", "a slot lies beyond the pages", "a wanted token is none of the step's")
SIZES = ("num_layers", "hidden", "num_heads", "num_kv_heads", "head_size", "page_size")
SCRATCH = ("qkv", "qk", "mixed", "inner", "y")


class _Pass(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in SIZES),
        *((name, c_int64) for name in ("tokens", "num_wanted", "num_places", "is_half", "is_wide")),
        *((name, c_void_p) for name in ("layers", "sights", "turn", "slots", "wanted")),
        *((name, c_void_p) for name in ("x", "normed", *SCRATCH)),
        *((name, c_void_p) for name in ("last_x", "last_mixed", "out")),
        ("eps", c_float),
    ]


class Layers:
    """The layers of one model. Holds its scratch memory: not for two calls at once."""

    def __init__(
        self,
        weights: Sequence[LayerWeights],
        *,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        eps: float,
    ) -> None:
        """Raises ValueError for weights that do not fit the sizes."""
        self._weights = list(weights)  # kept alive
        self._hidden = weights[0].qkv.inputs
        self._heads = (num_heads, num_kv_heads, head_size)
        self._eps = eps
        for layer in weights:
            _check_layer(layer, self._hidden, *self._heads)
        self._layers = (_Layer * len(weights))(*map(_layer, weights))
        rotated = (num_heads + num_kv_heads) * head_size
        self._widths = (
            rotated + num_kv_heads * head_size,
            rotated if weights[0].qk_norm is not None else 0,
            num_heads * head_size,
            max(layer.gate_up.columns for layer in weights),
            self._hidden,
        )  # of SCRATCH
        self._scratch = torch.empty(0)
        self._pages: Sequence[torch.Tensor] = ()  # for which the sights were made
        self._options: Sequence[Options] = ()
        self._sights = (_Sight * 0)()

    def __call__(
        self,
        x: torch.Tensor,
        normed: torch.Tensor,
        turn: torch.Tensor,
        sight: Sight,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        """[S, hidden]: what the tokens `wanted` [S] give the head.

        x: [T, hidden], the embedded tokens; changed. normed: [T, hidden], x normalised for the
        first layer; changed. Both float32, contiguous. turn: as for `rope_kv_write`.

        Raises ValueError on what does not fit, IndexError on slots beyond the pages and on tokens
        that are not in the step.
        """
        wanted = wanted.to(torch.int64)
        self._see(sight)
        self._check(x, normed, turn, sight)
        tokens, count = len(x), len(wanted)
        out = torch.empty(count, self._hidden)
        last_x, last_mixed = torch.empty_like(out), torch.empty(count, self._widths[2])
        if tokens == 0:
            return out
        pages, slots = sight.pages[0], sight.slots
        page_size = pages.shape[3]
        wrong = kernels().rs_layers(
            byref(
                _Pass(
                    len(self._weights), self._hidden, *self._heads, page_size,
                    tokens, count, len(pages) * page_size,
                    pages.dtype is torch.float16, slots.dtype is torch.int64,
                    ctypes.addressof(self._layers), ctypes.addressof(self._sights),
                    turn.data_ptr(), slots.data_ptr(), wanted.data_ptr(),
                    x.data_ptr(), normed.data_ptr(), *self._room(max(tokens, count)),
                    last_x.data_ptr(), last_mixed.data_ptr(), out.data_ptr(), self._eps,
                )
            )
        )  # fmt: skip
        if wrong:
            raise IndexError(WRONG[wrong])
        return out

    def _see(self, sight: Sight) -> None:
        """Tell C what the layers read. Their pages and options are the same in every step."""
        if sight.pages is not self._pages or sight.options is not self._options:
            shapes = {(pages.shape, pages.dtype) for pages in sight.pages}
            if len(shapes) != 1 or len(sight.pages) != len(self._weights):
                raise ValueError(f"there must be pages of one kind for {len(self._weights)} layers")
            self._sights = (_Sight * len(self._weights))(
                *(
                    _Sight(None, pages.data_ptr(), options.scale, options.softcap)
                    for pages, options in zip(sight.pages, sight.options, strict=True)
                )
            )
            self._pages, self._options = sight.pages, sight.options
        for seen, plan in zip(self._sights, sight.plans, strict=True):
            seen.plan = plan.address

    def _room(self, rows: int) -> list[int]:
        """Addresses of scratch for so many rows."""
        if self._scratch.numel() < rows * sum(self._widths):
            self._scratch = torch.empty(rows * sum(self._widths))
        address, found = self._scratch.data_ptr(), []
        for width in self._widths:
            found.append(address)
            address += rows * width * self._scratch.element_size()
        return found

    def _check(
        self,
        x: torch.Tensor,
        normed: torch.Tensor,
        turn: torch.Tensor,
        sight: Sight,
    ) -> None:
        tokens, size = len(x), self._heads[2]
        for rows in (x, normed):
            if rows.shape != (tokens, self._hidden) or rows.dtype is not torch.float32:
                raise ValueError(f"x and normed must be [T, {self._hidden}] float32")
            if not (rows.is_cpu and rows.is_contiguous()):
                raise ValueError("x and normed must be contiguous, on the CPU")
        if turn.numel() != tokens * size // 2 or turn.dtype is not torch.complex64:
            raise ValueError(f"turn must be [T, {size // 2}] complex64, is {tuple(turn.shape)}")
        if not (turn.is_contiguous() and sight.slots.is_contiguous()):
            raise ValueError("turn and slots must be contiguous")
        if sight.slots.shape != (tokens,) or sight.slots.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"slots must be {tokens} of int32 or int64")
        for plan in set(sight.plans):
            if plan.num_tokens != tokens or plan.shape.pages != sight.pages[0].shape:
                raise ValueError("a plan is for other tokens or pages")


def _product(packed: PackedLinear) -> _Product:
    return _Product(
        packed.panels.data_ptr(),
        None if packed.bias is None else packed.bias.data_ptr(),
        KINDS.index(packed.kind),
        packed.inputs,
        num_panels(packed.outputs, packed.gate_up),
        packed.columns,
        SILU_MUL if packed.gate_up else PLAIN,
    )


def _layer(weights: LayerWeights) -> _Layer:
    products = (weights.qkv, weights.output, weights.gate_up, weights.down)
    norms = (weights.qk_norm, weights.mlp_norm, weights.next_norm)
    addresses = (None if norm is None else norm.data_ptr() for norm in norms)
    return _Layer(*map(_product, products), *addresses)


def _check_layer(
    layer: LayerWeights, hidden: int, num_heads: int, num_kv_heads: int, head_size: int
) -> None:
    rotated = num_heads + num_kv_heads
    wanted = (
        (layer.qkv, hidden, (rotated + num_kv_heads) * head_size),
        (layer.output, num_heads * head_size, hidden),
        (layer.gate_up, hidden, layer.down.inputs),
        (layer.down, layer.gate_up.columns, hidden),
    )
    for packed, inputs, columns in wanted:
        if (packed.inputs, packed.columns) != (inputs, columns):
            raise ValueError(
                f"a product of {packed.inputs} inputs and {packed.columns} outputs must have"
                f" {inputs} and {columns}"
            )
    if not layer.gate_up.gate_up or layer.qkv.gate_up or layer.output.gate_up or layer.down.gate_up:
        raise ValueError("gate and up are packed as such, the others are not")
    shapes = [(layer.mlp_norm, (hidden,)), (layer.next_norm, (hidden,))]
    if layer.qk_norm is not None:
        shapes.append((layer.qk_norm, (rotated, head_size)))
    for norm, shape in shapes:
        if norm.shape != shape or norm.dtype is not torch.float32 or not norm.is_contiguous():
            raise ValueError(f"norms must be {shape} float32, contiguous")
