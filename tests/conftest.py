"""Where there is no GPU, Triton runs in its interpreter: switched on before anything imports it."""

import torch

from radixserve_kernels import interpret

if not torch.cuda.is_available():
    interpret.enable()
