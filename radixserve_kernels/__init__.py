"""Triton kernels over paged K/V, one file per op, each with a twin in `reference.py`.

Knows nothing of radixserve. Importing the package needs neither triton nor a GPU; importing an op
does. Without a GPU call `radixserve_kernels.interpret.enable()` first.
"""
