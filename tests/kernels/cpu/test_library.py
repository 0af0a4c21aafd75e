"""Building and finding the library: whole or not at all, once, and a reason where it cannot be."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from radixserve_kernels import cpu
from radixserve_kernels.cpu import build, library

ROOT = Path(__file__).parents[3]


@pytest.fixture
def checkout(monkeypatch, tmp_path):
    """No library in the package, and an empty cache; gives the cache."""
    monkeypatch.setattr(library, "PACKAGED", tmp_path / "none")
    monkeypatch.setattr(library, "CACHE", tmp_path / "cache")
    library.kernels.cache_clear()
    yield tmp_path / "cache"
    monkeypatch.undo()
    library.kernels.cache_clear()


def compiler_that(folder: Path, does: str) -> str:
    path = folder / "own-cc"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_bodies_are_the_machines(own_library):
    flags = Path("/proc/cpuinfo").read_text().split()
    for body, flag in (("avx512", "avx512dq"), ("avx2", "avx2")):
        assert (body in cpu.bodies()) == (flag in flags)
    assert cpu.bodies()[-1] == "portable"
    assert cpu.load().rs_body().decode() == cpu.bodies()[0]
    assert cpu.load("portable").rs_body() == b"portable"


@pytest.mark.parametrize("name", ["sse9", "avx", "port", "portable,", "avx2,portable"])
def test_an_unknown_body_is_refused(name):
    before = cpu.load().rs_body()
    with pytest.raises(ValueError, match="body must be one of"):
        cpu.load(name)
    assert cpu.load().rs_body() == before


def test_a_checkout_builds_once_and_keeps_it(checkout, monkeypatch):
    monkeypatch.setattr(build, "FLAGS", ("-O0", *build.FLAGS[1:]))
    assert cpu.available() == ""
    [folder] = checkout.iterdir()
    assert [file.name for file in folder.iterdir()] == [library.NAME]
    library.kernels.cache_clear()
    monkeypatch.setattr(library, "build", lambda *_: pytest.fail("built twice"))
    assert cpu.available() == ""


def test_without_a_compiler_it_says_so(checkout, monkeypatch):
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    assert "no C compiler (no-such-compiler) found" in cpu.available()
    with pytest.raises(build.BuildError, match="apt-get install gcc"):
        cpu.load()
    assert not checkout.exists()


def test_what_the_compiler_says_is_passed_on(tmp_path):
    broken = compiler_that(tmp_path, 'case "$*" in *-c*) echo "own words" >&2; exit 1;; esac')
    with pytest.raises(build.BuildError, match="own words"):
        build.build(tmp_path / "out" / build.NAME, broken)
    assert list((tmp_path / "out").iterdir()) == []


def test_other_machines_get_the_portable_body_alone(tmp_path):
    log = tmp_path / "log"
    does = f'echo "$*" >> {log}\ncase "$*" in *dumpmachine*) echo aarch64-linux-gnu;; esac'
    does += '\nfor word; do case "$word" in *.so) : > "$word";; esac; done'
    other = compiler_that(tmp_path, does)
    build.build(tmp_path / build.NAME, other)
    calls = log.read_text()
    assert "-DRS_BODY=portable" in calls and "avx" not in calls and "X86" not in calls


def test_the_digest_follows_sources_and_flags(tmp_path, monkeypatch):
    compiler = build.find_compiler()
    first = build.digest(compiler)
    assert build.digest(compiler) == first
    assert build.digest(compiler, ("-g",)) != first
    copy = shutil.copytree(build.SOURCES, tmp_path / "src")
    monkeypatch.setattr(build, "SOURCES", copy)
    assert build.digest(compiler) == first
    with (copy / "norm.c").open("a") as file:
        file.write("\n")
    assert build.digest(compiler) != first


def test_setup_without_a_compiler_warns_and_goes_on(tmp_path):
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("radixserve", "radixserve_kernels"):
        shutil.copytree(ROOT / name, tmp_path / name)
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_py", "-d", "out"],
        cwd=tmp_path,
        env=os.environ | {"CC": "no-such-compiler"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "no C compiler (no-such-compiler) found" in done.stderr
    built = tmp_path / "out" / "radixserve_kernels" / "cpu"
    assert (built / "src" / "ops.h").exists() and not (built / library.NAME).exists()
