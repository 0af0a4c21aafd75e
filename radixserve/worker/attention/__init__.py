"""Attention backends: how new tokens attend to pages. One class per file, named in `BACKENDS`.

The runner picks one, plans it once per step (masks, indices), and the model calls the plan once
per layer. To add one, write its file and its line here; the backend tests run over the table.
"""

from radixserve.worker.attention.backend import Attention, Setting, StepPlan
from radixserve.worker.attention.cpu_paged import CpuPaged
from radixserve.worker.attention.torch_paged import TorchPaged
from radixserve.worker.attention.triton import TritonPaged

__all__ = ["BACKENDS", "Attention", "Setting", "StepPlan"]

BACKENDS: dict[str, type[Attention]] = {
    "cpu": CpuPaged,
    "torch": TorchPaged,
    "triton": TritonPaged,
}
