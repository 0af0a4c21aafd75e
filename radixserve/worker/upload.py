"""A step's small integer arrays to the device in one copy that nobody waits for."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 4  # numbers: kernels are compiled for addresses that are multiples of 16 bytes


def upload(arrays: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    """`arrays` of any shape as int32 tensors on `device`: views of one piece of memory.

    Each begins at a multiple of 16 bytes. On a GPU the copy is only enqueued, from pinned memory.
    """
    host = _packed(arrays, device)
    whole = host.to(device, non_blocking=True)
    return _views(whole, {name: array.shape for name, array in arrays.items()})


class FixedInputs:
    """As `upload`, into the same memory each time: a CUDA graph reads it there."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        """`tensors` are zero until they are filled."""
        self._shapes = dict(shapes)
        size = sum(_room(int(np.prod(shape))) for shape in shapes.values())
        self._whole = torch.zeros(size, dtype=torch.int32, device=device)
        self.tensors = _views(self._whole, self._shapes)

    def fill(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace all values, behind what was enqueued so far."""
        given = {name: arrays[name] for name in self._shapes}
        assert all(array.shape == self._shapes[name] for name, array in given.items())
        self._whole.copy_(_packed(given, self._whole.device), non_blocking=True)


def _room(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _packed(arrays: Mapping[str, np.ndarray], device: torch.device) -> Tensor:
    """All of them one after another, on the host; for a GPU in pinned memory."""
    size = sum(_room(array.size) for array in arrays.values())
    host = torch.empty(size, dtype=torch.int32, pin_memory=device.type == "cuda")
    numbers = host.numpy()
    start = 0
    for array in arrays.values():
        numbers[start : start + array.size] = array.ravel()
        start += _room(array.size)
    return host


def _views(whole: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    views = {}
    start = 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        views[name] = whole[start : start + size].view(shape)
        start += _room(size)
    return views
