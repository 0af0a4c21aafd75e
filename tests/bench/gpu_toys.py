"""A check of toy sizes without a GPU, for the tests of bench/gpu."""

from pathlib import Path

import torch

from bench.gpu.check import Check
from bench.gpu.report import Report
from bench.gpu.sizes import TOY
from bench.gpu.timing import HostTimer


def toy_check(folder: Path) -> Check:
    return Check(torch.device("cpu"), TOY, HostTimer(), Report(folder, {}), folder)
