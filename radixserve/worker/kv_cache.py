"""The K/V tensors: pages of every layer. Not the pool's bookkeeping, which the scheduler owns.

A page is one piece of memory, and in it the tokens of one head are one piece too, so that a row's
pages can be gathered into a plain [heads, tokens, head size] with large copies. Attention backends
read and write it; the runner makes it.
"""

import mmap
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod

import numpy as np
import torch

from radixserve.worker.upload import upload

FP8_CODES = torch.uint8  # float8 e4m3fn numbers, told by their bits
SCALE_DTYPE = torch.float32
DTYPES = {"float16": torch.float16, "fp8_e4m3": FP8_CODES}  # values of --kv-cache-dtype


def page_bytes(
    *, num_layers: int, page_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> int:
    """Bytes of one page over all layers, of a `KVCache` of this dtype."""
    scale_bytes = SCALE_DTYPE.itemsize if dtype == FP8_CODES else 0
    return num_layers * page_size * 2 * num_kv_heads * (head_dim * dtype.itemsize + scale_bytes)


def _empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised tensor; on a CPU of the system's huge pages, where it has them.

    The 512 pages of 4 KiB in one of those are found by one look-up, and lie side by side in memory:
    rows' scattered pages are read 1.2 to 1.4 times as fast.
    """
    if device.type != "cpu" or sys.platform != "linux" or not prod(shape):
        return torch.empty(shape, dtype=dtype, device=device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, prod(shape) * dtype.itemsize, flags=flags)
    with suppress(OSError):  # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class KVCache:
    """Pages of all layers; `pages[layer]` is [num_pages, 2, Hkv, page_size, D], K at 0, V at 1.

    With dtype FP8_CODES each vector of a head has a scale beside its codes, in `scales[layer]`
    [num_pages, 2, Hkv, page_size] float32; otherwise `scales` is empty.

    Uninitialised: a page holds garbage (possibly NaN) until it is written, and whoever reads it
    must not let positions past a row's end take part, not even with weight zero. On a CPU memory
    is taken from the system only when a page is first written.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.page_size = page_size
        shape = (num_pages, 2, num_kv_heads, page_size, head_dim)
        self.pages = [_empty(shape, dtype, device) for _ in range(num_layers)]
        self.scales = [
            torch.empty(shape[:-1], dtype=SCALE_DTYPE, device=device)
            for _ in range(num_layers if dtype == FP8_CODES else 0)
        ]

    def vectors(self, places: torch.Tensor) -> torch.Tensor:
        """Where K and V of tokens at `places` [T] stand in a layer seen as vectors of one head.

        A place is page * page_size + offset. [T * 2 * Hkv], in the order of a tensor [T, 2, Hkv].
        """
        _, halves, num_kv_heads, page_size, _ = self.pages[0].shape
        kv_head = torch.arange(halves * num_kv_heads, device=places.device)
        places = places[:, None].long()
        page, offset = places // page_size, places % page_size
        return ((page * halves * num_kv_heads + kv_head) * page_size + offset).flatten()

    def copy(self, source_of: Mapping[int, int]) -> None:
        """Copy K and V of single tokens, in all layers: place -> the place it gets them from.

        All are read before any is written.
        """
        pairs = np.array([*source_of.keys(), *source_of.values()]).reshape(2, -1)
        places = upload({"places": pairs}, self.pages[0].device)["places"]
        targets, sources = self.vectors(places[0]), self.vectors(places[1])
        for pages in (*self.pages, *self.scales):
            vectors = pages.flatten(0, 3)
            vectors.index_copy_(0, targets, vectors.index_select(0, sources))

    def put(self, layer: int, places: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write k and v [T, Hkv, D] of single tokens, unscaled, to `places` [T] of a layer."""
        vectors = self.pages[layer].view(-1, k.shape[-1])
        written = torch.cat((k, v), 1).view(-1, k.shape[-1]).to(vectors.dtype)
        vectors.index_copy_(0, self.vectors(places), written)

    def key(self, layer: int) -> torch.Tensor:
        """K of a layer, a view [num_pages, page_size, Hkv, D] with the heads' stride above D."""
        return self.pages[layer][:, 0].transpose(1, 2)

    def value(self, layer: int) -> torch.Tensor:
        """V of a layer, as `key`."""
        return self.pages[layer][:, 1].transpose(1, 2)

    def key_scale(self, layer: int) -> torch.Tensor:
        """Scales of K of a layer, a view [num_pages, page_size, Hkv]."""
        return self.scales[layer][:, 0].transpose(1, 2)

    def value_scale(self, layer: int) -> torch.Tensor:
        """Scales of V of a layer, as `key_scale`."""
        return self.scales[layer][:, 1].transpose(1, 2)
