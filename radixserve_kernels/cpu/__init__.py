"""Kernels for the CPU in C: float32 activations, and bits of a row that depend on the row alone.

Neither the other rows of a call, nor their number, nor the number of threads changes a result; nor
does the body (AVX-512 or AVX2) that was chosen when the library was loaded. Not the choice of when
to use them: that is the caller's, who asks `available` first.
"""

from radixserve_kernels.cpu.attention import AttentionPlan, Parts, Shape, paged_attention
from radixserve_kernels.cpu.layers import Layers, LayerWeights, Sight
from radixserve_kernels.cpu.library import available, bodies, load, set_threads
from radixserve_kernels.cpu.linear import PackedLinear
from radixserve_kernels.cpu.norm import rms_norm
from radixserve_kernels.cpu.rope import rope_kv_write

__all__ = [
    "AttentionPlan",
    "LayerWeights",
    "Layers",
    "PackedLinear",
    "Parts",
    "Shape",
    "Sight",
    "available",
    "bodies",
    "load",
    "paged_attention",
    "rms_norm",
    "rope_kv_write",
    "set_threads",
]
