"""Causal attention of new tokens over K/V pages: prefill, extend and decode in one op.

Called by the worker's triton attention backend once per layer. The device code, and why a token's
bits depend on its position and K/V alone, is in `attention_kernels.py`; which program computes what
is planned once per step by `attention_plan.py`; block sizes are data (`tiles.py`). The maths is in
`reference.py`.
"""

from dataclasses import dataclass

import torch
import triton

from radixserve_kernels.attention_kernels import (
    chunk_attention_kernel,
    merge_kernel,
    tile_attention_kernel,
)
from radixserve_kernels.attention_options import Options
from radixserve_kernels.attention_plan import ITEM_HEAD
from radixserve_kernels.tiles import MAX_GROUP, MAX_HEAD_SIZE, AttentionTiles, Tile, padded

LOG2_E = 1.4426950408889634
# Contracted multiply-adds would round differently from one tile shape to the next.
OPTIONS = {"enable_fp_fusion": False}
MERGE_HEADS = 4  # query heads of a token that one program merges
MERGE_STAGES = 4
PROGRAMS_PER_PROCESSOR = 8  # of a kernel whose programs share out the items
INTERPRETED_PROGRAMS = 4


@dataclass(frozen=True)
class Work:
    """A `Plan` on the device, all int32, and how much of it there can be.

    counts: [2], how many of `narrow` and `wide`, which may have room for more, are items.
    parts, stats: [N, Hq, D] and [2, N, Hq] float32, room for at least the plan's partial results;
        overwritten.
    num_parts: how many there can be; 0: all tokens are in tiles.
    """

    tiles: torch.Tensor
    narrow: torch.Tensor
    wide: torch.Tensor
    counts: torch.Tensor
    lookup: torch.Tensor
    part_start: torch.Tensor
    parts: torch.Tensor
    stats: torch.Tensor
    num_parts: int


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    positions: torch.Tensor,
    work: Work,
    tiles: AttentionTiles,
    options: Options,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Causal attention of new tokens over the tokens of their rows; returns [T, Hq, D] like q.

    q: [T, Hq, D], the new tokens of one row after another, any token and head stride.
    k_cache, v_cache: [num_pages, page_size, Hkv, D], of q's dtype, or uint8 with fp8 codes; equal
        strides; the K/V of the new tokens is already in them. Strides are compiled in, so they
        should stay the same.
    page_table: [slots, max_pages] int32 page ids; entries past a row's pages are not read.
    positions: [T] int32, of the new tokens in their rows.
    work, tiles: who computes what, planned for these tokens with these tiles.
    scales: of K and V in an fp8 cache, [num_pages, page_size, Hkv] float32, equal strides.

    Of tokens that the plan leaves out the result is zero, if it has no tiles.

    Raises ValueError on shapes, dtypes, strides or devices that do not fit.
    """
    _check(q, k_cache, v_cache, scales)
    group = q.shape[1] // k_cache.shape[2]
    _check_step(q, page_table, positions, work, tiles, group)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not len(q):
        return out
    k_scale, v_scale = scales or (k_cache, v_cache)
    caches = (k_cache, v_cache, k_scale, v_scale, page_table)
    compiled = constants(q, k_cache, scales, options)
    score_scale = options.scale / options.softcap if options.softcap else options.scale * LOG2_E
    numbers = (page_table.stride(0), score_scale, options.softcap * LOG2_E, options.window)
    if len(work.tiles):
        grid = (len(work.tiles) * k_cache.shape[2],)
        tile_attention_kernel[grid](
            q, *caches, work.tiles, out, *numbers,
            **compiled, **form(tiles, tiles.tile, options),
            num_warps=tiles.tile.num_warps, **OPTIONS,
        )  # fmt: skip
    if not work.num_parts:
        return out
    room = len(work.parts)
    for items, count, tile in (
        (work.narrow, work.counts[:1], tiles.narrow),
        (work.wide, work.counts[1:], tiles.wide),
    ):
        if len(items):
            programs = min(len(items) * k_cache.shape[2], most_programs(q.device))
            chunk_attention_kernel[(programs,)](
                q, *caches, positions, items, count, work.lookup, work.part_start,
                work.parts, work.stats, room, *numbers,
                **compiled, **form(tiles, tile, options), num_warps=tile.num_warps, **OPTIONS,
            )  # fmt: skip
    merging = merge_constants(q, options, tiles, some_tiled=len(work.tiles) > 0)
    grid = (len(q) * triton.cdiv(q.shape[1], merging["BLOCK_H"]),)
    merge_kernel[grid](
        work.parts, work.stats, positions, work.part_start, out, room, options.window,
        **merging, **merge_options(merging),
    )  # fmt: skip
    return out


def constants(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None,
    options: Options,
) -> dict[str, int | bool]:
    """Compile-time arguments of both kernels for tensors of these shapes and strides, any device.

    `form` has the others.
    """
    _, page_size, kv_heads, head_size = k_cache.shape
    scale_strides = scales[0].stride() if scales else (0, 0, 0)
    return {
        "GROUP": q.shape[1] // kv_heads,
        "KV_HEADS": kv_heads,
        "HEAD_SIZE": head_size,
        "PAGE_SIZE": page_size,
        "Q_TOKEN": q.stride(0),
        "Q_HEAD": q.stride(1),
        "KV_PAGE": k_cache.stride(0),
        "KV_TOKEN": k_cache.stride(1),
        "KV_HEAD": k_cache.stride(2),
        "SCALE_PAGE": scale_strides[0],
        "SCALE_TOKEN": scale_strides[1],
        "SCALE_HEAD": scale_strides[2],
        "FP8": scales is not None,
        "SOFTCAP": options.softcap > 0,
        "WINDOW": options.window > 0,
        "BLOCK_D": padded(head_size),
    }


def form(tiles: AttentionTiles, tile: Tile, options: Options) -> dict[str, int | bool]:
    """Compile-time arguments of one form."""
    return {
        "CHUNK": tiles.chunk,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "STAGES": tile.stages(window=options.window > 0),
    }


def merge_constants(
    q: torch.Tensor, options: Options, tiles: AttentionTiles, *, some_tiled: bool
) -> dict[str, int | bool]:
    """The compile-time arguments of `merge_kernel`."""
    return {
        "HEADS": q.shape[1],
        "HEAD_SIZE": q.shape[2],
        "WINDOW": options.window > 0,
        "SOME_TILED": some_tiled,
        "CHUNK": tiles.chunk,
        "BLOCK_H": min(MERGE_HEADS, triton.next_power_of_2(q.shape[1])),
        "BLOCK_D": padded(q.shape[2]),
        "STAGES": MERGE_STAGES,
    }


def merge_options(merging: dict[str, int | bool]) -> dict[str, int | bool]:
    """What `merge_kernel` is compiled with: lanes that load four numbers at once or more."""
    numbers = merging["BLOCK_H"] * merging["BLOCK_D"]
    return {"num_warps": max(1, numbers // 256), **OPTIONS}


def most_programs(device: torch.device) -> int:
    """Programs that share out the items, however many there are."""
    if device.type == "cpu":
        return INTERPRETED_PROGRAMS
    processors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * PROGRAMS_PER_PROCESSOR


def _check_step(
    q: torch.Tensor,
    page_table: torch.Tensor,
    positions: torch.Tensor,
    work: Work,
    tiles: AttentionTiles,
    group: int,
) -> None:
    _check_room(q, work)
    shapes = {
        "page_table": (page_table, (page_table.shape[0], page_table.shape[-1])),
        "positions": (positions, (len(q),)),
        "work.tiles": (work.tiles, (len(work.tiles), 4)),
        "work.narrow": (work.narrow, (len(work.narrow), ITEM_HEAD + tiles.narrow.block_m // group)),
        "work.wide": (work.wide, (len(work.wide), ITEM_HEAD + tiles.wide.block_m // group)),
        "work.counts": (work.counts, (2,)),
        "work.lookup": (work.lookup, (len(page_table) + len(q),)),
        "work.part_start": (work.part_start, (len(q) + 1,)),
    }
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} must be {list(shape)} for {len(q)} tokens, is {tensor.shape}")
        if tensor.dtype != torch.int32 or (tensor.numel() and tensor.stride(-1) != 1):
            raise ValueError(f"{name} must be int32 with a last stride of 1, is {tensor.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}, q on {q.device}")


def _check_room(q: torch.Tensor, work: Work) -> None:
    shape = (len(work.parts), *q.shape[1:])
    for name, tensor, wanted in (
        ("parts", work.parts, shape),
        ("stats", work.stats, (2, *shape[:2])),
    ):
        if tensor.shape != wanted or tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError(
                f"work.{name} must be {wanted} float32, contiguous, is {tuple(tensor.shape)} "
                f"{tensor.dtype}"
            )
        if tensor.device != q.device:
            raise ValueError(f"work.{name} is on {tensor.device}, q on {q.device}")
    if work.num_parts > len(work.parts):
        raise ValueError(f"no room for {work.num_parts} partial results, only {len(work.parts)}")


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None,
) -> None:
    if q.dim() != 3 or k_cache.dim() != 4 or q.shape[2] != k_cache.shape[3]:
        raise ValueError(
            f"q must be [T, Hq, D] and k_cache [num_pages, page_size, Hkv, D], are "
            f"{tuple(q.shape)} and {tuple(k_cache.shape)}"
        )
    if v_cache.shape != k_cache.shape or v_cache.stride() != k_cache.stride():
        raise ValueError("k_cache and v_cache must have the same shape and strides")
    _, page_size, kv_heads, head_size = k_cache.shape
    if page_size & (page_size - 1) or not 1 <= page_size <= 256:
        raise ValueError(f"page size must be a power of two up to 256, is {page_size}")
    if q.shape[1] % kv_heads or not 1 <= q.shape[1] // kv_heads <= MAX_GROUP:
        raise ValueError(f"{q.shape[1]} query heads do not fit {kv_heads} K/V heads")
    if head_size % 8 or not 8 <= head_size <= MAX_HEAD_SIZE:
        raise ValueError(f"head size must be a multiple of 8 up to 256, is {head_size}")
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"q must be float32, bfloat16 or float16, is {q.dtype}")
    cache_dtype = torch.uint8 if scales else q.dtype
    if (k_cache.dtype, v_cache.dtype) != (cache_dtype, cache_dtype):
        raise ValueError(
            f"q is {q.dtype}{' with scales' if scales else ''}, the cache {k_cache.dtype} and "
            f"{v_cache.dtype}, not {cache_dtype}"
        )
    if scales is not None:
        _check_scales(k_cache, *scales)
    if (k_cache.device, v_cache.device) != (q.device, q.device):
        raise ValueError(f"q is on {q.device}, the cache on {k_cache.device} and {v_cache.device}")
    if q.stride(2) != 1 or k_cache.stride(3) != 1:
        raise ValueError("the last stride of q, k_cache and v_cache must be 1")


def _check_scales(cache: torch.Tensor, k_scale: torch.Tensor, v_scale: torch.Tensor) -> None:
    wanted = (cache.shape[:3], torch.float32, cache.device)
    for scale in (k_scale, v_scale):
        if (scale.shape, scale.dtype, scale.device) != wanted or scale.stride() != k_scale.stride():
            raise ValueError(
                "scales must be float32 [num_pages, page_size, Hkv] with equal strides, beside the "
                f"cache {tuple(cache.shape)}: one is {scale.dtype} {tuple(scale.shape)}"
            )
