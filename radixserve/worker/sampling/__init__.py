"""Samplers: from logits to next tokens. One class per file, named in `SAMPLERS`.

The runner makes the one that its attention backend names, tells it of each request that comes and
goes, and calls it once per step. To add one, write its file and its line here.
"""

from collections.abc import Callable

import torch

from radixserve.worker.sampling.grammar import Grammars
from radixserve.worker.sampling.sampler import LOST, Logprobs, Sampled, Sampler
from radixserve.worker.sampling.torch_sampler import TorchSampler
from radixserve.worker.sampling.triton_sampler import TritonSampler

__all__ = ["LOST", "SAMPLERS", "Grammars", "Logprobs", "Sampled", "Sampler"]

SAMPLERS: dict[str, Callable[[int, int, torch.device, Grammars], Sampler]] = {
    "torch": TorchSampler,
    "triton": TritonSampler,
}
