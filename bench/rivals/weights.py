"""The embedded model's weights in the forms that the servers read; made once, kept in the cache."""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, ReaderField, dequantize

from radixserve.models.hub import converted, embedded_file

# about the file itself, which the writer tells anew
OWN_FIELDS = ("general.architecture", "general.file_type", "general.quantization_version")


@dataclass(frozen=True)
class Weights:
    """The same numbers three times."""

    folder: Path  # a Hugging Face checkpoint in float32
    dense: Path  # a GGUF file in float32
    blocks: Path  # the GGUF file as it came, in Q4_1


def prepare(cache: Path) -> Weights:
    """All forms, converted now or earlier. Raises RuntimeError where the model is not installed."""
    source = embedded_file()
    folder = converted(source, cache, report, dense=True)
    return Weights(folder, dense_gguf(source, cache / f"{folder.name}.gguf"), source)


def dense_gguf(source: Path, target: Path) -> Path:
    """`target`: the GGUF file `source` with every tensor in float32. Kept if it is there."""
    if target.exists():
        return target
    report(f"writing {target.name}, once")
    handle, unfinished = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    try:
        write_dense(source, Path(unfinished))
        Path(unfinished).rename(target)
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return target


def write_dense(source: Path, target: Path) -> None:
    """Copy the fields, write each tensor as the numbers that its blocks stand for."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in OWN_FIELDS:
            copy(field, writer)
    writer.add_file_type(LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        numbers = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy(field: ReaderField, writer: GGUFWriter) -> None:
    """One entry of the file's head, a list with the type of its items."""
    kind, *rest = field.types
    items = rest[-1] if kind == GGUFValueType.ARRAY else None
    writer.add_key_value(field.name, field.contents(), kind, items)


def report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
