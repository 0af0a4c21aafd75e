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
    starts = []
    total = 0
    for array in arrays.values():
        starts.append(total)
        total += -(-array.size // ALIGNMENT) * ALIGNMENT
    host = torch.empty(total, dtype=torch.int32, pin_memory=device.type == "cuda")
    numbers = host.numpy()
    for start, array in zip(starts, arrays.values(), strict=True):
        numbers[start : start + array.size] = array.ravel()
    whole = host.to(device, non_blocking=True)
    return {
        name: whole[start : start + array.size].view(array.shape)
        for start, (name, array) in zip(starts, arrays.items(), strict=True)
    }
