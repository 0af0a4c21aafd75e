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
        options = ("--quiet", "--no-deps", "--no-binary", ":all:", "--dest", fetched)
        _pip(commands / "python", "download", *options, LLAMA_CPP)
        with tarfile.open(next(fetched.glob("*.tar.gz"))) as archive:
            for member in archive.getmembers():
                _, found, name = member.name.partition(TESTS)
                if found and name and (member.isfile() or member.isdir()):
                    archive.extract(member.replace(name=name), half, filter="data")
        half.rename(folder)
        shutil.rmtree(fetched)
    return folder
