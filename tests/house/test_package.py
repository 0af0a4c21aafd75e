"""The wheel has the packages, the CPU kernels and nothing else; pins are within its bounds."""

import ctypes
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LIBRARY = "radixserve_kernels/cpu/libradixserve_cpu.so"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name: str) -> dict[str, Requirement]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    wanted = (Requirement(line) for line in lines if line and line[0] not in "#-")
    return {requirement.name.lower(): requirement for requirement in wanted}


def tracked() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy of the files that git knows, so that no build folder is left behind."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("out")
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    readme = source / PROJECT["readme"]
    readme.touch()
    command = [sys.executable, "-m", "pip", "wheel", source, "-w", out, "--no-deps"]
    done = subprocess.run(
        [*command, "--no-build-isolation", "--quiet"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return zipfile.ZipFile(next(out.glob("*.whl")))


def test_the_wheel_has_every_file_of_the_packages(wheel: zipfile.ZipFile) -> None:
    built = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert built == {name for name in tracked() if name.startswith("radixserve")} | {LIBRARY}


def test_the_library_in_the_wheel_can_be_loaded(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    library = ctypes.CDLL(wheel.extract(LIBRARY, tmp_path))
    library.rs_bodies.restype = ctypes.c_char_p
    assert library.rs_bodies().decode().endswith("portable")


def test_the_wheel_is_for_one_platform_and_any_python(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL"))
    [tag] = [line for line in wheel.read(name).decode().splitlines() if line.startswith("Tag: ")]
    assert tag.startswith("Tag: py3-none-") and not tag.endswith("-any")


def test_the_wheel_says_how_to_start_it(wheel: zipfile.ZipFile) -> None:
    entry = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "radixserve = radixserve.__main__:main" in wheel.read(entry).decode()
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_pins_are_within_the_declared_bounds() -> None:
    pinned = pins("serve.txt")
    for text in PROJECT["dependencies"]:
        bound = Requirement(text)
        (specifier,) = pinned[bound.name].specifier
        assert specifier.operator == "==", text
        assert bound.specifier.contains(specifier.version), text


def test_every_requirement_is_one_exact_release() -> None:
    for file in ("serve.txt", "model.txt", "test.txt"):
        for name, requirement in pins(file).items():
            exact = re.fullmatch(r"==[\w.]+", str(requirement.specifier))
            assert exact or name == "triton", f"{file}: {requirement}"


def test_tests_run_with_a_triton_that_the_gpu_extra_allows() -> None:
    (bound,) = (Requirement(text) for text in PROJECT["optional-dependencies"]["gpu"])
    asked = {spec.version for spec in pins("test.txt")["triton"].specifier}
    assert all(bound.specifier.contains(version) for version in asked)
