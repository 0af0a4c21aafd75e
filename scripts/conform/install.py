"""The environment with the suites, in build/conformance; made again when the pins change."""

import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "conformance"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
LLAMA_CPP = "llama-cpp-python==0.3.36"  # its source holds llama.cpp's, with the tests of its server
TESTS = "vendor/llama.cpp/tools/server/tests/"
PIP_SECONDS = 1800


def _pip(python: Path, *arguments: str | Path) -> None:
    command = [python, "-m", "pip", *arguments]
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        timeout=PIP_SECONDS,
        check=False,
    )
    if done.returncode:
        sys.exit(f"pip could not {arguments[0]} what the suites need")


def installed() -> Path:
    """The folder of the commands of an environment that has all suites."""
    folder, record = BUILD / "venv", BUILD / "installed.txt"
    wanted = REQUIREMENTS.read_text()
    if not (record.is_file() and record.read_text() == wanted):
        print("installing the suites in build/conformance", file=sys.stderr, flush=True)
        BUILD.mkdir(parents=True, exist_ok=True)
        venv.create(folder, clear=True, with_pip=True)
        _pip(folder / "bin" / "python", "install", "--quiet", "--no-input", "-r", REQUIREMENTS)
        record.write_text(wanted)
    return folder / "bin"


def llama_cpp_tests(commands: Path) -> Path:
    """The folder of llama.cpp's server tests. Only they are kept of its source."""
    folder = BUILD / LLAMA_CPP.replace("==", "-")
    if not folder.is_dir():
        print(f"fetching the source of {LLAMA_CPP}", file=sys.stderr, flush=True)
        half, fetched = BUILD / "half", BUILD / "fetched"
        for leftover in (half, fetched):
            shutil.rmtree(leftover, ignore_errors=True)
        name, _, _ = LLAMA_CPP.partition("==")  # of it alone: what pip builds it with are wheels
        options = ("--quiet", "--no-deps", "--no-binary", name, "--dest", fetched)
        _pip(commands / "python", "download", *options, LLAMA_CPP)
        with tarfile.open(next(fetched.glob("*.tar.gz"))) as archive:
            for member in archive.getmembers():
                _, found, inner = member.name.partition(TESTS)
                data = archive.extractfile(member)  # None for what is no file
                if found and data is not None and ".." not in inner:
                    target = half / inner
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data.read())
        half.rename(folder)
        shutil.rmtree(fetched)
    return folder
