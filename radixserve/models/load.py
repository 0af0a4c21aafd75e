"""Weights from safetensors files into a `Decoder`, and a short name for what was loaded.

No conversion happens here: a folder is loaded as it is, or refused with the names of the tensors
that do not fit. Called by the worker when it starts.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from radixserve.models.blocks import Blocks, told_name
from radixserve.models.decoder import Decoder
from radixserve.models.dummy import fill_dummy
from radixserve.models.operators import TORCH, Operators
from radixserve.models.packed import PackedFile
from radixserve.models.spec import ModelSpec, read_spec

INDEX = "model.safetensors.index.json"
SAMPLE_BYTES = 1024
DUMMY = "dummy"  # the load format, and how the fingerprint begins
# in old checkpoints: computed from the config here, or not part of the network
IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")


def load(
    folder: Path,
    *,
    device: str,
    dtype: torch.dtype,
    context_length: int,
    operators: Operators = TORCH,
    load_format: str = "auto",
    kept: Path | None = None,
) -> Decoder:
    """The model in `folder`, on `device` in `dtype`, for requests of up to `context_length` tokens.

    0 means what the model allows. `load_format` "dummy" reads no weights but makes some up. Each
    tensor is read once, straight to the device. `kept`: the folder that keeps what the operators
    pack, if they can (`packed`). Raises ValueError that names tensors which are
    missing, unexpected or of another shape.
    """
    spec = read_spec(folder)
    if not 0 <= context_length <= spec.max_position:
        raise ValueError(
            f"context length {context_length} is more than the model allows ({spec.max_position})"
        )
    decoder = Decoder(
        spec,
        device=device,
        dtype=dtype,
        context_length=context_length or spec.max_position,
        operators=operators,
    )
    packed = None
    if kept is not None and operators.keep is not None and load_format != DUMMY:
        packed = PackedFile(folder, weight_files(folder), fingerprint(folder), operators.keep, kept)
        if packed.restore(decoder):
            return decoder.eval()
    with torch.inference_mode():
        if load_format == DUMMY:
            fill_dummy(decoder.checkpoint_tensors())
        else:
            _read(folder, device, decoder)
    decoder.prepare()
    if packed is not None:
        packed.save(decoder)
    return decoder.eval()


def fingerprint(folder: Path, load_format: str = "auto") -> str:
    """16 characters that change with the config or the weights; the same wherever the folder lies.

    Hex digits, with "dummy" before them where the weights are. Reads config.json, the header of
    each safetensors file and up to 1 KiB of each tensor, so it takes milliseconds: two checkpoints
    that differ nowhere else would be taken for the same.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    if load_format == DUMMY:
        return f"{DUMMY}{digest.hexdigest()}"[:16]
    for path in weight_files(folder):
        with path.open("rb") as file:
            length = file.read(8)
            header = file.read(int.from_bytes(length, "little"))
            digest.update(f"{path.name} {path.stat().st_size} ".encode() + header)
            data = 8 + len(header)
            for name, entry in json.loads(header).items():
                if name == "__metadata__":
                    continue
                start, end = entry["data_offsets"]
                middle = start + max(0, (end - start - SAMPLE_BYTES) // 2)
                file.seek(data + middle)
                digest.update(file.read(min(SAMPLE_BYTES, end - middle)))
    return digest.hexdigest()[:16]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, in the order of their names."""
    if (index := folder / INDEX).exists():
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    if missing := [name for name in names if not (folder / name).exists()]:
        raise ValueError(f"{folder} has no {', '.join(missing)}")
    return [folder / name for name in names]


def _read(folder: Path, device: str, decoder: Decoder) -> None:
    wanted = decoder.checkpoint_tensors()
    blocks: dict[str, Blocks] = {}
    unexpected = []
    for stored, tensor in _tensors(folder, device):
        name, kind = told_name(stored)
        if name in wanted and kind:
            blocks[name] = Blocks(tensor, kind)
            _check(name, wanted[name], blocks[name].shape)
        elif name in wanted:
            _fill(name, wanted.pop(name), tensor)
        elif not _is_ignored(name, decoder.spec):
            unexpected.append(stored)
    complain(folder, "has no tensor", list(wanted.keys() - blocks.keys()))
    complain(folder, "has tensors this architecture does not know:", unexpected)
    for name in blocks.keys() - decoder.take(blocks):
        _fill(name, wanted[name], blocks[name].numbers())


def _tensors(folder: Path, device: str) -> Iterator[tuple[str, Tensor]]:
    for path in weight_files(folder):
        with safe_open(path, framework="pt", device=device) as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                yield name, file.get_tensor(name)


def _fill(name: str, views: list[Tensor], tensor: Tensor) -> None:
    _check(name, views, tensor.shape)
    for view in views:
        view.copy_(tensor)


def _check(name: str, views: list[Tensor], shape: Sequence[int]) -> None:
    for view in views:
        if tuple(view.shape) != tuple(shape):
            raise ValueError(
                f"tensor {name} has shape {list(shape)}, the config says {list(view.shape)}"
            )


def _is_ignored(name: str, spec: ModelSpec) -> bool:
    return name.endswith(IGNORED_SUFFIXES) or (spec.tie_embeddings and name == "lm_head.weight")


def complain(folder: Path, what: str, names: list[str]) -> None:
    """Raise ValueError with the first of `names`, if there are any."""
    if names:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise ValueError(f"{folder} {what} {', '.join(sorted(names)[:5])}{more}")
