"""A decoder's weights as its operators pack them, in a file that the next start maps.

Packing reads a whole checkpoint and copies it. A mapped file is read where and when it is used, and
all processes that serve the model share its pages. Called by `load`, for operators that have a
`Keep`; small models are packed each time.
"""

import hashlib
import json
import logging
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from radixserve.models.decoder import Decoder
from radixserve.models.operators import Keep

log = logging.getLogger("radixserve.worker")

LEAST_BYTES = 32 << 20  # of packed weights: fewer are packed in no time
ALIGNMENT = 64  # of the tensors' memory, as the kernels like it
HUGE_PAGE = 2 << 20
FORMS, PAD = "forms", "pad"  # in the file's metadata
PLAIN = "plain"


class PackedFile:
    """The file for one checkpoint folder, in the folder `kept`.

    Its name changes with the checkpoint's files and with the layout that operators pack into, and
    when it is written, what was kept for this folder before goes.
    """

    def __init__(
        self, folder: Path, files: Sequence[Path], fingerprint: str, keep: Keep, kept: Path
    ) -> None:
        """`files` and `fingerprint`: the checkpoint's."""
        digest = hashlib.sha256(f"{fingerprint} {keep.layout}".encode())
        for file in files:
            about = file.stat()
            digest.update(f" {file.name} {about.st_size} {about.st_mtime_ns}".encode())
        self._keep = keep
        self._folder = kept
        self._own = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:10]
        self.path = kept / f"{self._own}-{digest.hexdigest()[:10]}.safetensors"

    def restore(self, decoder: Decoder) -> bool:
        """Fill `decoder` with what is kept. False if nothing is, or nothing that can be read."""
        if not self.path.exists():
            return False
        try:
            _bring(self.path)
            with safe_open(self.path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                forms = json.loads((file.metadata() or {})[FORMS])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            log.warning("%s cannot be read and is made again: %s", self.path, error)
            return False
        parts = {name: self._keep.restore(_of(name, tensors), form) for name, form in forms.items()}
        decoder.take_packed(parts, _of(PLAIN, tensors))
        log.info("weights are mapped from %s", self.path)
        return True

    def save(self, decoder: Decoder) -> None:
        """Keep what `decoder` packed.

        Where there is no room for it, or no right to write, a line in the log says so.
        """
        if decoder.weight_bytes < LEAST_BYTES:
            return
        parts, plain = decoder.packed_parts()
        tensors = {f"{PLAIN}.{name}": tensor.detach() for name, tensor in plain.items()}
        forms = {}
        for name, part in parts.items():
            of_part, forms[name] = self._keep.save(part)
            tensors |= {f"{name}.{key}": tensor for key, tensor in of_part.items()}
        try:
            self._write(tensors, json.dumps(forms), decoder.weight_bytes)
        except OSError as error:
            log.warning("the packed weights are not kept: %s", error)

    def _write(self, tensors: dict[str, Tensor], forms: str, size: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self._folder).free < 2 * size:
            raise OSError(f"{self._folder} has too little room for {size >> 20} MiB")
        handle, name = tempfile.mkstemp(prefix=f".{self._own}-", dir=self._folder)
        os.close(handle)
        unfinished = Path(name)
        try:
            save_file(tensors, unfinished, {FORMS: forms, PAD: ""})
            if pad := -_data_start(unfinished) % ALIGNMENT:
                save_file(tensors, unfinished, {FORMS: forms, PAD: " " * pad})
            _settle(unfinished)
            unfinished.replace(self.path)
        finally:
            unfinished.unlink(missing_ok=True)
        for old in self._folder.glob(f"{self._own}-*"):
            if old != self.path:
                old.unlink(missing_ok=True)


def _bring(path: Path) -> None:
    """Read a file into memory in huge pages, where the system has them for files.

    Whoever maps it then gets those pages. A step reads all weights, and finds them sooner.
    """
    if sys.platform != "linux":
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        with suppress(OSError):  # a system without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, len(mapped), HUGE_PAGE):
            mapped[at]


def _settle(path: Path) -> None:
    """Write a file to its disk and let go of what memory has of it, for `_bring` to read."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        if sys.platform == "linux":
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _data_start(path: Path) -> int:
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def _of(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those that are named as parts of it, by the rest of their names."""
    prefix = f"{part}."
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
