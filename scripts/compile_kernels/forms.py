"""What is compiled: one line in `FORMS` for each form of each kernel, as the engine launches it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from compile_kernels.cover import pairwise
from radixserve_kernels import (
    attention_kernels,
    edit_logits,
    kv_write,
    matmul,
    paged_attention,
    rms_norm,
    rope_kv_write,
    sample,
    silu_mul,
)
from radixserve_kernels.attention_options import Options
from radixserve_kernels.tiles import attention_tiles

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# The values that `everything` combines; the names are fields of `Variant`.
VALUES: dict[str, tuple[Any, ...]] = {
    "dtype": tuple(DTYPES),
    "head_size": (64, 80, 96, 128, 256),
    "group": (1, 2, 3, 4, 5, 6, 7, 8, 16),
    "page_size": (16, 32, 64),
    "kv": ("same", "fp8"),
    "option": ("none", "window", "softcap"),
}
OPTIONS = {
    "none": Options(1.0),
    "window": Options(1.0, window=1024),
    "softcap": Options(1.0, softcap=50.0),
}
# Types of arguments by name; other pointers are to the variant's dtype, other numbers int32.
INTEGERS = (
    "TABLE", "TILES", "POSITIONS", "ITEMS", "COUNT", "LOOKUP", "PART_START", "SLOTS",
    "COUNTS", "EDIT_START", "EDIT_TOKEN", "TOKENS", "LAST_TOKENS",
)  # fmt: skip
FLOATS = (
    "TURN", "PARTS", "STATS", "K_SCALE", "V_SCALE", "LOGITS", "EDIT_AMOUNT", "MAXIMA"
)  # fmt: skip
TYPES = {
    **dict.fromkeys(INTEGERS, "*i32"),
    **dict.fromkeys(FLOATS, "*fp32"),
    **dict.fromkeys(("PARAMS", "GATHERED"), "*i64"),
    **dict.fromkeys(("eps", "score_scale", "softcap_log2"), "fp32"),
}
CODES = dict.fromkeys(("K", "V"), "*u8")  # of an fp8 cache


@dataclass(frozen=True)
class Variant:
    """One compilation: `form` is a key of `FORMS`, which says what of the rest counts.

    Rows of norm and silu have the sizes of all query heads together.

    kv: the dtype of the cache, "same" as `dtype` or "fp8".
    option: of attention: "none", "window" or "softcap".
    """

    form: str
    dtype: str = "bf16"
    head_size: int = 128
    group: int = 4
    kv_heads: int = 8
    page_size: int = 16
    kv: str = "same"
    option: str = "none"

    def __str__(self) -> str:
        heads = f"{self.kv_heads * self.group}/{self.kv_heads}"
        rest = [word for word in (self.kv, self.option) if word not in ("same", "none")]
        sizes = f"d{self.head_size} h{heads} page{self.page_size}"
        return " ".join([self.form, self.dtype, sizes, *rest])


@dataclass(frozen=True)
class Launch:
    """What a kernel is compiled with, and what must come out.

    element: triton's name of the dtype of pointers that neither `TYPES` nor `types` names.
    types: of arguments, by name.
    block_m: rows of its matrix product; None if it has none.
    wide: loads of 16 bytes a lane are wanted.
    """

    kernel: Any  # triton's JITFunction
    constants: dict[str, Any]
    options: dict[str, Any]
    element: str
    types: dict[str, str] = field(default_factory=dict)
    block_m: int | None = None
    wide: bool = True

    def signature(self) -> dict[str, str]:
        """Triton's type of every argument, in order."""
        known = TYPES | self.types | dict.fromkeys(self.constants, "constexpr")
        return {
            name: known.get(name, f"*{self.element}" if name.isupper() else "i32")
            for name in self.kernel.arg_names
        }


@dataclass(frozen=True)
class Form:
    """How a variant is launched on a chip of `tiles.CHIPS`; the keys of `VALUES` that it covers."""

    launch: Callable[[Variant, str], Launch]
    dimensions: tuple[str, ...]


def step_tensors(variant: Variant) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and keys of two tokens, and two pages of keys; shapes without memory."""
    dtype, heads, size = DTYPES[variant.dtype], variant.kv_heads, variant.head_size
    q = torch.empty(2, heads * variant.group, size, dtype=dtype, device="meta")
    k = torch.empty(2, heads, size, dtype=dtype, device="meta")
    cache = torch.empty(2, variant.page_size, heads, size, dtype=dtype, device="meta")
    return q, k, cache


def step_scales(variant: Variant) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Scales of keys and values, heads first and beside each other, of an fp8 cache."""
    if variant.kv == "same":
        return None
    shape = (2, 2, variant.kv_heads, variant.page_size)
    k_scale, v_scale = torch.empty(shape, device="meta").transpose(2, 3).unbind(1)
    return k_scale, v_scale


def attention(variant: Variant, chip: str, form: str) -> Launch:
    q, _, cache = step_tensors(variant)
    scales = step_scales(variant)
    tiles = attention_tiles(
        chip, q.element_size(), variant.head_size, variant.group, variant.page_size,
        1 if scales else None,
    )  # fmt: skip
    options = OPTIONS[variant.option]
    if form == "merge":
        constants = paged_attention.merge_constants(q, options, tiles, some_tiled=True)
        return Launch(
            attention_kernels.merge_kernel,
            constants,
            paged_attention.merge_options(constants),
            variant.dtype,
            # few heads are fewer numbers than four for each of AMD's 64 lanes
            wide=constants["BLOCK_H"] * constants["BLOCK_D"] >= 256 or chip != "gfx942",
        )
    tile = getattr(tiles, form)
    kernel = attention_kernels.chunk_attention_kernel
    if form == "tile":
        kernel = attention_kernels.tile_attention_kernel
    return Launch(
        kernel,
        paged_attention.constants(q, cache, scales, options)
        | paged_attention.form(tiles, tile, options),
        {"num_warps": tile.num_warps, **paged_attention.OPTIONS},
        variant.dtype,
        types=CODES if scales else {},
        block_m=tile.block_m,
    )


def write(variant: Variant, chip: str) -> Launch:
    _, k, cache = step_tensors(variant)
    scales = step_scales(variant)
    constants = kv_write.constants(k, k, cache, scales)
    types = dict.fromkeys(("K_CACHE", "V_CACHE"), "*u8") if scales else {}
    return Launch(kv_write.kv_write_kernel, constants, kv_write.OPTIONS, variant.dtype, types)


def rope(variant: Variant, chip: str) -> Launch:
    q, k, cache = step_tensors(variant)
    scales = step_scales(variant)
    constants = rope_kv_write.constants(q, k, k, cache, scales)
    types = dict.fromkeys(("K_CACHE", "V_CACHE"), "*u8") if scales else {}
    kernel = rope_kv_write.rope_kv_write_kernel
    return Launch(kernel, constants, rope_kv_write.OPTIONS, variant.dtype, types)


def product(variant: Variant, chip: str, rows: int) -> Launch:
    """Of all query heads together, with as many outputs, and a bias."""
    x = step_tensors(variant)[0].flatten(1)
    weight = torch.empty(x.shape[1], x.shape[1], dtype=x.dtype, device="meta")
    tile = matmul.tile_for(chip, x.element_size(), rows, uniform=False)
    constants = matmul.constants(x, weight, tile, has_bias=True)
    options = matmul.options(tile)
    return Launch(matmul.matmul_kernel, constants, options, variant.dtype, block_m=tile.block_m)


def norm(variant: Variant, chip: str, of_heads: bool) -> Launch:
    """Of the query heads, or of the residual stream."""
    q, _, _ = step_tensors(variant)
    x = q if of_heads else q.flatten(1)
    constants = rms_norm.constants(x, has_residual=not of_heads)
    options = {"num_warps": rms_norm.num_warps(x.shape[-1]), **rms_norm.OPTIONS}
    return Launch(rms_norm.rms_norm_kernel, constants, options, variant.dtype)


def silu(variant: Variant, chip: str) -> Launch:
    q, _, _ = step_tensors(variant)
    constants = silu_mul.constants(q.flatten(1).repeat(1, 2))
    return Launch(silu_mul.silu_mul_kernel, constants, silu_mul.OPTIONS, variant.dtype)


def edit(variant: Variant, chip: str) -> Launch:
    constants = edit_logits.constants(torch.empty(2, VOCAB, device="meta"))
    return Launch(edit_logits.edit_logits_kernel, constants, edit_logits.OPTIONS, "fp32")


def choice(variant: Variant, chip: str) -> Launch:
    constants = sample.constants(torch.empty(2, VOCAB, device="meta"))
    return Launch(sample.sample_kernel, constants, sample.OPTIONS, "fp32")


ATTENTION = tuple(VALUES)
POINTLESS = ("fp32", "fp8")  # dtype and kv: float32 is for comparisons, 8 bits beside it for nobody
WRITES = ("dtype", "head_size", "page_size", "kv")
FORMS = {
    "narrow": Form(partial(attention, form="narrow"), ATTENTION),
    "wide": Form(partial(attention, form="wide"), ATTENTION),
    "tile": Form(partial(attention, form="tile"), ATTENTION),
    "merge": Form(partial(attention, form="merge"), ("dtype", "head_size", "group", "option")),
    "write": Form(write, WRITES),
    "rope": Form(rope, WRITES),
    "matmul-16": Form(partial(product, rows=16), ("dtype", "head_size", "group")),
    "matmul-64": Form(partial(product, rows=64), ("dtype", "head_size", "group")),
    "matmul-128": Form(partial(product, rows=128), ("dtype", "head_size", "group")),
    "norm": Form(partial(norm, of_heads=False), ("dtype", "head_size", "group")),
    "qk-norm": Form(partial(norm, of_heads=True), ("dtype", "head_size")),
    "silu": Form(silu, ("dtype", "head_size")),
    "edit": Form(edit, ()),
    "sample": Form(choice, ()),
}
VOCAB = 128256  # of the logits


def core() -> Iterator[Variant]:
    """What two usual models need: SmolLM2-135M's attention, and Llama-3-8B's shapes."""
    for form in ("narrow", "wide", "tile"):
        yield Variant(form, head_size=64, group=3, kv_heads=3)
    for form in FORMS:
        yield Variant(form)
    for form in ("narrow", "rope"):
        yield Variant(form, kv="fp8")


def everything() -> Iterator[Variant]:
    """The core, and for each form every pair of two values of its dimensions; none twice."""
    seen = set()
    for variant in core():
        seen.add(variant)
        yield variant
    for name, form in FORMS.items():
        for row in pairwise({key: VALUES[key] for key in form.dimensions}):
            for variant in _sensible(Variant(name, kv_heads=2, **row)):
                if variant not in seen:
                    seen.add(variant)
                    yield variant


def _sensible(variant: Variant) -> tuple[Variant, ...]:
    """The variant, or two that have its other pairs of values."""
    if (variant.dtype, variant.kv) != POINTLESS:
        return (variant,)
    return replace(variant, kv="same"), replace(variant, dtype="bf16")
