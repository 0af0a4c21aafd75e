"""Block sizes of the kernels: `tuned.json` read, checked and asked. No triton.

An entry of the file has the name of a kernel, a value or "*" for each of the kernel's keys, and the
block sizes. "*" stands for any value, of `chip` for any GPU. Of the entries that fit, the one with
the fewest "*" counts. Head sizes stand there as `padded`, and are at least 64.
"""

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import combinations
from typing import Any

import torch

ANY = "*"
INTERPRETER = "interpreter"
CHIPS = ("sm_80", "sm_90", "sm_100", "gfx942", INTERPRETER)
MAX_GROUP = 16
MAX_HEAD_SIZE = 256
LEAST_HEAD_SIZE = 64  # of an entry
UNIFORM_M = 64  # the least block_m of wgmma and tcgen05; 16 rows take mma.sync, or another mfma


@dataclass(frozen=True)
class Tile:
    """One compiled shape: `block_m` (token, query head) lanes by `block_n` K/V tokens.

    window_stages: in place of `num_stages` for layers with a sliding window, which take more
        registers; None: the same. A plan, and the order of the reduction, are the same for both.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    window_stages: int | None = None

    def stages(self, *, window: bool) -> int:
        return (window and self.window_stages) or self.num_stages


@dataclass(frozen=True)
class AttentionTiles:
    """The order of the reduction over a row's tokens, and the tiles that all keep to it.

    chunk: tokens of one part of the reduction, counted from a row's token 0; parts are merged in
        order. A multiple of the tiles' `block_n`, the step within a chunk, which is one for all.
    split_tokens: rows with up to so many new tokens have their chunks in programs of their own.
    narrow, wide: for rows, or rows that share a chunk, with few and with many lanes.
    tile: for longer rows.
    """

    chunk: int
    split_tokens: int
    narrow: Tile
    wide: Tile
    tile: Tile

    def uniform(self) -> "AttentionTiles":
        """The same with one kind of matrix instruction: no narrow tiles, and the others alike.

        From UNIFORM_M rows on chips have their large instructions, below it smaller ones.
        """
        wide, tile = self.wide, self.tile
        if (wide.block_m >= UNIFORM_M) != (tile.block_m >= UNIFORM_M):
            wide = tile = min(wide, tile, key=lambda form: form.block_m)
        return replace(self, narrow=wide, wide=wide, tile=tile)


@dataclass(frozen=True)
class MatmulTile:
    """One compiled shape: `block_m` rows by `block_n` outputs, over `block_k` inputs at a time."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def attention_tiles(
    chip: str,
    itemsize: int,
    head_size: int,
    group: int,
    page_size: int,
    kv_itemsize: int | None = None,
) -> AttentionTiles:
    """The tiles for queries of `itemsize` bytes, K/V of `kv_itemsize` (None: as the queries).

    chip: one of `CHIPS`; see `chip_of`.
    group: query heads of one K/V head.

    Raises ValueError if the file has no entry for them.
    """
    return _attention_tiles(chip, itemsize, head_size, group, page_size, kv_itemsize or itemsize)


@cache
def _attention_tiles(
    chip: str, itemsize: int, head_size: int, group: int, page_size: int, kv_itemsize: int
) -> AttentionTiles:
    asked = {
        "chip": chip,
        "bytes": itemsize,
        "kv_bytes": kv_itemsize,
        "head_size": max(LEAST_HEAD_SIZE, padded(head_size)),
        "group": group,
        "page_size": page_size,
    }
    return most_specific(tuned(), "attention", asked)


@cache
def matmul_tiles(chip: str, itemsize: int) -> tuple[MatmulTile, ...]:
    """The tiles for elements of `itemsize` bytes, from few rows to many; all add in one order.

    The last has at least `UNIFORM_M` rows.

    Raises ValueError if the file has no entry for them.
    """
    forms: tuple[MatmulTile, ...] = most_specific(
        tuned(), "matmul", {"chip": chip, "bytes": itemsize}
    )
    return forms


@cache
def chip_of(device: torch.device) -> str:
    """The one of `CHIPS` whose block sizes a device takes: its own or the next lower of its family.

    Raises ValueError for a device that has none.
    """
    if device.type == "cpu":
        return INTERPRETER
    if device.type != "cuda":
        raise ValueError(f"no block sizes for a device of type {device.type}")
    if torch.version.hip is not None:
        return _amd_chip(torch.cuda.get_device_properties(device).gcnArchName)
    return _nvidia_chip(*torch.cuda.get_device_capability(device))


def _nvidia_chip(major: int, minor: int) -> str:
    # Chips of 12.x have the matrix instructions of sm_80, neither wgmma nor tcgen05.
    chip = {8: "sm_80", 9: "sm_90", 10: "sm_100", 11: "sm_100", 12: "sm_80"}.get(major)
    if chip is None:
        raise ValueError(f"no block sizes for compute capability {major}.{minor}")
    return chip


def _amd_chip(arch: str) -> str:
    name = arch.partition(":")[0]  # of "gfx942:sramecc+:xnack-"
    number = int(name.removeprefix("gfx"), 16)
    if not 0x942 <= number < 0xA00:
        raise ValueError(f"no block sizes for {name}")
    return "gfx942"


def padded(head_size: int) -> int:
    """The power of two that holds `head_size`, at least 16: the least a matrix product takes."""
    return max(16, 1 << (head_size - 1).bit_length())


Key = Mapping[str, int | str]
Table = Mapping[str, Mapping[tuple[int | str, ...], Any]]  # kernel -> values of KEYS -> tiles


@cache
def tuned() -> Table:
    """What `tuned.json` holds. Raises ValueError that names a bad entry."""
    text = resources.files(__package__).joinpath("tuned.json").read_text(encoding="utf-8")
    return table_of(json.loads(text))


def table_of(entries: Sequence[Mapping[str, Any]]) -> Table:
    """Checks and parses entries; ValueError names a bad one, and two of which none goes first."""
    table: dict[str, dict[tuple[int | str, ...], Any]] = {kernel: {} for kernel in KERNELS}
    for entry in entries:
        try:
            kernel = entry.get("kernel")
            if kernel not in KERNELS:
                raise ValueError(f"kernel must be one of {', '.join(KERNELS)}")
            names, parse = KERNELS[kernel]
            values = dict(entry)
            del values["kernel"]
            key = tuple(_checked(name, values.pop(name, None)) for name in names)
            if key in table[kernel]:
                raise ValueError("stands there twice")
            table[kernel][key] = parse(values)
        except ValueError as error:
            raise ValueError(f"tuned.json: {error}: {json.dumps(entry)}") from None
    for kernel, keys in table.items():
        _check_ties(kernel, keys)
    return table


def most_specific(table: Table, kernel: str, asked: Key) -> Any:
    """The tiles of the entry with the fewest "*" that fits; `asked` has the kernel's keys."""
    names, _ = KERNELS[kernel]
    wanted = [asked[name] for name in names]
    fitting = [key for key in table[kernel] if all(map(_fits, key, wanted))]
    if not fitting:
        raise ValueError(f"tuned.json has no entry of {kernel} for {dict(asked)}")
    return table[kernel][min(fitting, key=lambda key: key.count(ANY))]


def _fits(value: int | str, wanted: int | str) -> bool:
    return value == wanted or (value == ANY and wanted != INTERPRETER)


def _check_ties(kernel: str, keys: Mapping[tuple[int | str, ...], Any]) -> None:
    """No question may have two best answers; an entry for what two have in common settles them."""
    for one, other in combinations(keys, 2):
        both = tuple(b if a == ANY else a for a, b in zip(one, other, strict=True))
        overlap = all(map(_fits, one, both)) and all(map(_fits, other, both))
        if overlap and one.count(ANY) == other.count(ANY) and both not in keys:
            raise ValueError(f"tuned.json: {kernel}: {one} and {other} both fit {both}")


def _checked(name: str, value: object) -> int | str:
    if value == ANY or (name == "chip" and value in CHIPS):
        return value
    if name == "chip":
        raise ValueError(f'chip must be "*" or one of {", ".join(CHIPS)}')
    return _count(name, value)


def _count(name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be a positive whole number")
    return value


def _power_of_two(name: str, value: object, least: int) -> int:
    count = _count(name, value)
    if count & (count - 1) or count < least:
        raise ValueError(f"{name} must be a power of two, at least {least}")
    return count


def _attention(values: dict[str, Any]) -> AttentionTiles:
    forms = ("narrow", "wide", "tile")
    _check_names("an entry of attention", values, {"chunk", "block_n", "split_tokens", *forms})
    block_n = _power_of_two("block_n", values["block_n"], 16)
    chunk = _count("chunk", values["chunk"])
    if chunk % block_n:
        raise ValueError(f"chunk must be a multiple of block_n, {block_n}")
    split_tokens = _count("split_tokens", values["split_tokens"])
    return AttentionTiles(
        chunk, split_tokens, **{form: _tile(form, values[form], block_n) for form in forms}
    )


def _tile(form: str, values: dict[str, Any], block_n: int) -> Tile:
    needed = {"block_m", "num_warps", "num_stages"}
    _check_names(form, values, needed, optional={"window_stages"})
    window_stages = values.get("window_stages")
    if window_stages is not None:
        window_stages = _count(f"window_stages of {form}", window_stages)
    return Tile(
        block_m=_power_of_two(f"block_m of {form}", values["block_m"], 16),
        block_n=block_n,
        num_warps=_power_of_two(f"num_warps of {form}", values["num_warps"], 1),
        num_stages=_count(f"num_stages of {form}", values["num_stages"]),
        window_stages=window_stages,
    )


def _matmul(values: dict[str, Any]) -> tuple[MatmulTile, ...]:
    _check_names("an entry of matmul", values, {"block_k", "forms"})
    block_k = _power_of_two("block_k", values["block_k"], 16)
    if not isinstance(values["forms"], list):
        raise ValueError("forms must be a list")
    forms = tuple(_matmul_tile(form, block_k) for form in values["forms"])
    heights = [form.block_m for form in forms]
    if heights != sorted(set(heights)) or not heights or heights[-1] < UNIFORM_M:
        raise ValueError(f"block_m of forms must rise, to at least {UNIFORM_M}")
    return forms


def _matmul_tile(values: dict[str, Any], block_k: int) -> MatmulTile:
    _check_names("a form", values, {"block_m", "block_n", "num_warps", "num_stages"})
    return MatmulTile(
        block_m=_power_of_two("block_m of a form", values["block_m"], 16),
        block_n=_power_of_two("block_n of a form", values["block_n"], 16),
        block_k=block_k,
        num_warps=_power_of_two("num_warps of a form", values["num_warps"], 1),
        num_stages=_count("num_stages of a form", values["num_stages"]),
    )


def _check_names(
    what: str, values: object, names: set[str], optional: Set[str] = frozenset()
) -> None:
    if not isinstance(values, dict) or values.keys() - optional != names:
        may = f"; it may have {', '.join(sorted(optional))}" if optional else ""
        raise ValueError(f"{what} must have exactly {', '.join(sorted(names))}{may}")


# kernel -> names of its keys, and what parses the rest of an entry
KERNELS: dict[str, tuple[tuple[str, ...], Callable[[dict[str, Any]], Any]]] = {
    "attention": (("chip", "bytes", "kv_bytes", "head_size", "group", "page_size"), _attention),
    "matmul": (("chip", "bytes"), _matmul),
}
