"""Weights that nobody trained: random numbers in the shapes of a config.json.

For measurements and tests of models whose weights are not at hand. Called by `load`.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

STD = 0.02  # as most models are initialised: what flows through the layers stays finite


def fill_dummy(tensors: Mapping[str, Sequence[Tensor]]) -> None:
    """Fill `tensors`, named as in checkpoints: norms with 1, all others from a normal distribution.

    The same names and shapes get the same numbers on the same kind of device.
    """
    generators: dict[torch.device, torch.Generator] = {}
    for name, views in tensors.items():
        for view in views:
            if name.endswith("norm.weight"):
                view.fill_(1.0)
                continue
            if view.device not in generators:
                generators[view.device] = torch.Generator(view.device).manual_seed(0)
            view.normal_(0.0, STD, generator=generators[view.device])
