"""Checks and times the kernels and the engine on the GPU at hand; `scripts/gpu-check` runs it.

One file per section, each imported only when its turn comes, so that what is missing on a machine
costs the sections that need it. `run.py` goes through them, `command.py` starts it and outlives it.
"""
