"""Compiles the C sources into one shared library with the system's C compiler.

Called by setup.py, so that a wheel carries the library, and by `library` for a checkout, where it
is built on first use into a cache folder. Standard library only: setup.py runs it before anything
is installed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
NAME = "libradixserve_cpu.so"
# every other .c holds operators, compiled for each body
ONCE = ("attention_plan.c", "dispatch.c", "layers.c", "pack.c", "pool.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    "-O3",
    "-std=gnu11",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # products and sums are fused where the source says so, nowhere else
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
)
X86_BODIES = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
}
BODIES = {"portable": (), **X86_BODIES}
COMPILE_SECONDS = 600


class BuildError(RuntimeError):
    """The library could not be compiled; the text says why, for people."""


def find_compiler(wanted: str | None = None) -> str:
    """Path of the C compiler: `wanted`, or the first of cc, gcc and clang. Raises BuildError."""
    for name in (wanted,) if wanted else COMPILERS:
        path = shutil.which(name)
        if path:
            return path
    names = wanted or ", ".join(COMPILERS)
    raise BuildError(
        f"no C compiler ({names}) found; the CPU kernels need one"
        " (on Debian or Ubuntu: apt-get install gcc libc6-dev)"
    )


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout


def _bodies(compiler: str) -> dict[str, tuple[str, ...]]:
    """Name and flags of each body for the machine that the compiler is for."""
    machine = _run([compiler, "-dumpmachine"])
    return BODIES if machine.startswith(("x86_64", "amd64")) else {"portable": ()}


def digest(compiler: str, extra: tuple[str, ...] = ()) -> str:
    """Changes with the sources, the compiler and the flags: names a library in the cache."""
    known = hashlib.sha256()
    for file in sorted(SOURCES.iterdir()):
        known.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    version = _run([compiler, "--version"])
    known.update(repr((version, sys.platform, _bodies(compiler), FLAGS, extra)).encode())
    return known.hexdigest()[:16]


def build(target: Path, compiler: str | None = None, extra: tuple[str, ...] = ()) -> None:
    """Compile all sources into `target`, which appears whole or not at all.

    `extra` are further flags. Raises BuildError, with the compiler's words, and OSError.
    """
    found = find_compiler(compiler)
    bodies = _bodies(found)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        commands, objects = [], []
        for source in sorted(SOURCES.glob("*.c")):
            for body, flags in {"": ()}.items() if source.name in ONCE else bodies.items():
                objects.append(str(Path(folder, f"{source.stem}-{body}.o")))
                named = [f"-DRS_BODY={body}", f"-DRS_BODY_{body.upper()}"] if body else []
                has_x86 = ["-DRS_HAS_X86_BODIES"] if len(bodies) > 1 else []
                options = [*FLAGS, *flags, *extra, *named, *has_x86]
                commands.append([found, *options, "-c", str(source), "-o", objects[-1]])
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(_run, commands))
        linked = str(Path(folder, NAME))
        _run([found, "-shared", "-pthread", *extra, *objects, "-o", linked, "-lm"])
        os.replace(linked, target)
