"""The arguments of scripts/compile-kernels, and the release of triton it runs with. No triton.

Another release than the installed one is put into a folder of its own in build/, and the process
begins again with that folder first on its path.
"""

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build"
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="compile-kernels", description="Compiles the kernels ahead of time, without a GPU."
    )
    parser.add_argument(
        "--target", default="sm_90", help=f"comma-separated, of {', '.join(TARGETS)}"
    )
    parser.add_argument("--all", action="store_true", help="every form in all pairs of its values")
    parser.add_argument(
        "--changed",
        action="store_true",
        help="the core, and of --all what is not in the record as it is now",
    )
    parser.add_argument("--record", action="store_true", help="put the reports into the record")
    parser.add_argument("--triton", metavar="RELEASE", help="compile with this one, as 3.6.0")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    given = parser.parse_args(argv)
    given.target = given.target.split(",")
    if unknown := set(given.target) - set(TARGETS):
        parser.error(f"unknown target: {', '.join(sorted(unknown))}")
    if given.jobs < 1:
        parser.error(f"--jobs must be at least 1, is {given.jobs}")
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("the interpreter is on: unset TRITON_INTERPRET")
    return given


def choose_release(wanted: str | None) -> None:
    """Goes on if `wanted` is the triton that an import would take, else begins again with it."""
    if wanted in (None, importlib.metadata.version("triton")):
        return
    folder = BUILD / f"triton-{wanted}"
    path = os.environ.get("PYTHONPATH", "")
    if str(folder) in path.split(os.pathsep):
        sys.exit(f"{folder} does not have triton {wanted}: remove the folder and try again")
    if not folder.is_dir():
        install(f"triton=={wanted}", folder)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), path)))}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def install(requirement: str, folder: Path) -> None:
    """The folder appears when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"installing {requirement} in {folder}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as half:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps"]
        done = subprocess.run([*command, "--target", f"{half}/whole", requirement], check=False)
        if done.returncode:
            sys.exit(f"pip could not install {requirement}")
        Path(half, "whole").rename(folder)
