"""Finds and loads the library of CPU kernels: the package's own, or one built from the sources.

The C functions are called through ctypes, which releases the GIL. What they are given has been
checked by the operators in this folder; nothing else calls them.
"""

import ctypes
import logging
from ctypes import c_char_p, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

from radixserve_kernels.cpu.build import NAME, BuildError, build, digest, find_compiler

logger = logging.getLogger(__name__)

PACKAGED = Path(__file__).parent / NAME
CACHE = Path("~/.cache/radixserve/cpu-kernels")  # one folder for each digest of the sources

# name -> (result, arguments), as src/ops.h, src/dispatch.c and src/pool.c have them
INT, PTR = c_int64, c_void_p
TASK = ctypes.CFUNCTYPE(None, PTR, INT)
SIGNATURES = {
    "rs_bodies": (c_char_p, []),
    "rs_body": (c_char_p, []),
    "rs_choose": (c_int, [c_char_p]),
    "rs_set_threads": (INT, [INT]),
    "rs_parallel": (None, [TASK, PTR, INT]),
    "rs_bound_plan": (c_int, [PTR, PTR]),
    "rs_make_plan": (c_int, [PTR, PTR, PTR, PTR, INT]),
    "rs_layers": (c_int, [PTR]),
    "rs_attention": (None, [PTR, PTR, INT, INT, PTR, INT, PTR, c_float, c_float]),
    "rs_rope_kv_write": (None, [PTR, INT, INT] * 3 + [PTR, PTR, INT, PTR] + [INT] * 6),
    "rs_rms_norm": (None, [PTR, INT, INT, PTR, PTR, PTR, INT, INT, INT, c_float]),
    "rs_linear": (None, [PTR, INT, INT, INT, PTR, INT, PTR, INT, INT, PTR, INT, INT]),
    "rs_pack": (None, [PTR, INT, INT, INT, INT, INT, PTR]),
    "rs_packed_rows": (None, [PTR, INT, INT, PTR, INT, PTR]),
    "rs_are_bf16": (c_int, [PTR, INT]),
}


def available() -> str:
    """ "" if the kernels can be used here, else a sentence that says why not.

    In a checkout the first call compiles them, which takes some seconds.
    """
    try:
        kernels()
    except (BuildError, OSError) as error:
        return str(error)
    return ""


def load(body: str | None = None) -> ctypes.CDLL:
    """The library, loaded once, with the best body that runs here or the one that is named.

    A named body ("avx512", "avx2", "portable") holds for all calls from then on, None for the best;
    a call while kernels run is not allowed. Raises ValueError for a body that does not run here,
    BuildError or OSError where there is no library.
    """
    library = kernels()
    if library.rs_choose((body or bodies()[0]).encode()):
        raise ValueError(f"body must be one of {', '.join(bodies())} here, is {body}")
    return library


def bodies() -> list[str]:
    """The bodies that run on this machine, the best first. Raises as `load`."""
    return kernels().rs_bodies().decode().split(",")


def set_threads(count: int) -> int:
    """Let `count` threads compute, the caller's included; returns the number that now holds."""
    return kernels().rs_set_threads(count)


@cache
def kernels() -> ctypes.CDLL:
    """The library as it is, for the operators: the best body, unless `load` chose another."""
    library = ctypes.CDLL(str(PACKAGED if PACKAGED.exists() else _built(CACHE.expanduser())))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.rs_choose(library.rs_bodies().split(b",")[0])
    return library


def _built(folder: Path) -> Path:
    """Path of the library in the cache, compiled if it is not there yet."""
    compiler = find_compiler()
    path = folder / digest(compiler) / NAME
    if not path.exists():
        logger.info("compiling the CPU kernels into %s", path)
        build(path, compiler)
    return path
