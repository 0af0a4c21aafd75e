"""What Triton's interpreter (3.6 to 3.9) gets wrong, put right while tests run; nothing else.

It multiplies bfloat16 as if the bits were integers (triton issue 11584), truncates where a GPU
rounds to nearest even, and hands a tile to BLAS, whose bits for one row depend on the row's place.
"""

from contextlib import contextmanager

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter

KNOWN = ("3.6.", "3.7.", "3.8.", "3.9.")


def _as_float32(handle):
    if handle.dtype.scalar == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    return handle.data.astype(np.float32)


def _round_to_bfloat16(data):
    bits = np.ascontiguousarray(data, np.float32).view(np.uint32)
    nearest_even = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(data), np.uint16(0x7FC0), nearest_even).reshape(np.shape(data))


def _dot(self, a, b, d, *rest):
    """One vector-matrix product per row of `a`: a row's bits do not depend on its place."""
    product = np.matmul(_as_float32(a)[..., None, :], _as_float32(b)[..., None, :, :])[..., 0, :]
    return interpreter.TensorHandle(product + d.data, d.dtype.scalar)


def _rounding(cast):
    def to(self, source, kind, *rest):
        if source.dtype.scalar == tl.float32 and kind.scalar == tl.bfloat16:
            return interpreter.TensorHandle(_round_to_bfloat16(source.data), tl.bfloat16)
        return cast(self, source, kind, *rest)

    return to


@contextmanager
def repaired():
    """Patch the interpreter's builder, and put it back. RuntimeError on a version not looked at."""
    if not triton.__version__.startswith(KNOWN):
        raise RuntimeError(f"is the interpreter of triton {triton.__version__} still wrong?")
    builder = interpreter.InterpreterBuilder
    kept = {name: getattr(builder, name) for name in ("create_dot", "cast_impl", "create_fp_to_fp")}
    builder.create_dot = _dot
    builder.cast_impl = _rounding(kept["cast_impl"])
    builder.create_fp_to_fp = _rounding(kept["create_fp_to_fp"])
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(builder, name, method)
