"""The checks of scripts/ find what they are there to find; the set-up keeps its promises."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"scripts_{name}", ROOT / "scripts" / f"{name}.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def project(tree: Path, files: dict[str, str], tables: str = "") -> Path:
    files = {"pyproject.toml": f'[project]\nversion = "1.2.3"\n{tables}', **files}
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    return tree


def function(lines: int) -> str:
    return "def f():\n" + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(
    ("name", "text", "breaches"),
    [
        ("radixserve/a.py", "x = 1\n" * 400, 0),
        ("radixserve/a.py", "x = 1\n" * 401, 1),
        ("radixserve/a.py", function(60), 0),
        ("radixserve/a.py", function(61), 1),
        ("bench/a.py", "async " + function(61), 1),
        ("radixserve_kernels/a.py", function(150), 0),
        ("radixserve_kernels/a.py", function(151), 1),
    ],
)
def test_sizes(tmp_path: Path, name: str, text: str, breaches: int) -> None:
    sizes = script("sizes")
    lines, found = sizes.check(project(tmp_path, {name: text}))
    assert len(found) == breaches
    assert lines.total() == text.count("\n")
    excuses = f'[tool.radixserve.sizes]\n"{name}" = "why"\n"{name}:f" = "why"\n'
    _, found = sizes.check(project(tmp_path, {}, excuses))
    assert len(found) == 2 - breaches, "an excuse that is not needed is a breach"


@pytest.mark.parametrize(
    ("name", "text", "bans"),
    [
        ("radixserve/a.py", "import pickle", ["pickle"]),
        ("radixserve/a.py", "from pickle import loads", ["pickle"]),
        ("radixserve/a.py", "import os\nos.environ['A']", ["environ"]),
        ("radixserve/a.py", "from os import getenv", ["environ"]),
        ("radixserve/a.py", "print(1)", ["print"]),
        ("radixserve/a.py", "'a pickle, os.environ, print(1)'", []),
        ("radixserve/worker/utils.py", "", ["name"]),
        ("radixserve/cache/a.py", "import msgspec", ["cache-import"]),
        ("radixserve/cache/a.py", "from radixserve.messages import pack", ["cache-import"]),
        ("radixserve/cache/a.py", "import radixserve.cache.b, heapq, sortedcontainers", []),
        ("radixserve/cache/a.py", "from .b import c", []),
        ("bench/a.py", "print(1)", []),
        ("README.md", "cd /" + "home/somebody/x", ["home"]),
        ("README.md", "see docs/home/page and ~/x", []),
    ],
)
def test_patterns(tmp_path: Path, name: str, text: str, bans: list[str]) -> None:
    patterns = script("patterns")
    found = list(patterns.breaches(project(tmp_path, {name: text}), [Path(name)]))
    assert [line.split(": ")[1] for line in found] == bans
    excuses = f'[tool.radixserve.patterns]\n"{name}" = {bans}\n'
    assert not list(patterns.breaches(project(tmp_path, {}, excuses), [Path(name)]))


@pytest.mark.parametrize(
    ("heading", "package", "same"),
    [
        ("## [1.2.3] - Unreleased", "1.2.3", True),
        ("## [1.2.3] - 2026-01-31", "1.2.3", True),
        ("## [1.2.3] - 2026-01-31", "1.2.4", False),
        ("## [1.2.4] - Unreleased\n\n## [1.2.3] - 2026-01-31", "1.2.3", False),
        ("## 1.2.3", "1.2.3", False),
    ],
)
def test_version(tmp_path: Path, heading: str, package: str, same: bool) -> None:
    files = {"CHANGELOG.md": f"# Changelog\n\n{heading}\n"}
    files["radixserve/__init__.py"] = f'__version__ = "{package}"\n'
    found = script("version").versions(project(tmp_path, files))
    assert (len(set(found.values())) == 1) is same


# ---- set-up --------------------------------------------------------------------------------------


FILES = ("serve", "model", "test", "clients", "bare")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the set-up with tiny requirements and a `pip` that only notes how it was called."""
    tree = project(
        tmp_path / "clone",
        {f"requirements/{name}.txt": f"{name}-package==1\n" for name in FILES},
    )
    shutil.copytree(
        ROOT / "scripts", tree / "scripts", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tree


def fake_environment(clone: Path) -> Path:
    """An environment whose interpreter is this one, but whose `-m pip` is a recording stub."""
    folder = clone / ".venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("")
    (folder / "bin/python").write_text(
        f'#!/bin/sh\n[ "$2" = pip ] && {{ echo "$*" >>"{clone}/calls"; sleep 0.2; eval "$END"; }}\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    (folder / "bin/python").chmod(0o755)
    return folder


def start(clone: Path, kind: str, **environment: str) -> "subprocess.Popen[str]":
    variables = {**os.environ, "END": "exit 0", **environment}
    variables.pop("RADIXSERVE_VENV", None)
    return subprocess.Popen(
        [clone / "scripts/setup", kind],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def calls(clone: Path) -> list[str]:
    return (clone / "calls").read_text().splitlines() if (clone / "calls").exists() else []


def test_setup_installs_once_and_again_when_requirements_change(clone: Path) -> None:
    fake_environment(clone)
    out, err = start(clone, "serve").communicate(timeout=30)
    assert out == "" and "installing serve packages" in err
    assert len(calls(clone)) == 2
    assert "--no-deps" in calls(clone)[1] and "model.txt" in calls(clone)[1]
    assert not any("--force-reinstall" in call for call in calls(clone))
    assert start(clone, "serve").communicate(timeout=30) == ("", "")
    assert len(calls(clone)) == 2
    (clone / "requirements/serve.txt").write_text("serve-package==2\n")
    start(clone, "test").communicate(timeout=30)
    assert len(calls(clone)) == 4 and "test.txt" in calls(clone)[2]
    assert "bare.txt" not in calls(clone)[2] and "bare.txt" in calls(clone)[3]
    for kind in ("serve", "test"):
        assert start(clone, kind).communicate(timeout=30) == ("", "")


def test_two_setups_at_once_install_once(clone: Path) -> None:
    fake_environment(clone)
    both = [start(clone, "serve") for _ in range(2)]
    said = [process.communicate(timeout=30)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len(calls(clone)) == 2, said


@pytest.mark.parametrize(("end", "forced"), [("exit 1", False), ("kill -9 $$", True)])
def test_a_failed_setup_is_repaired(clone: Path, end: str, forced: bool) -> None:
    fake_environment(clone)
    failed = start(clone, "serve", END=end)
    assert "pip failed" in failed.communicate(timeout=30)[1]
    assert failed.returncode == 1
    for _ in range(2):
        again = start(clone, "serve")
        again.communicate(timeout=30)
        assert again.returncode == 0
    assert ["--force-reinstall" in call for call in calls(clone)] == [False, forced, forced]


def test_a_foreign_folder_is_not_cleared(clone: Path) -> None:
    project(clone / ".venv", {"letter.txt": "dear"})
    refused = start(clone, "serve")
    assert "neither empty nor a virtual environment" in refused.communicate(timeout=30)[1]
    assert refused.returncode == 1
    assert (clone / ".venv/letter.txt").exists()


def test_no_python_is_said_plainly(clone: Path, tmp_path: Path) -> None:
    for name in ("python3.13", "python3.12", "python3.11", "python3"):
        old = tmp_path / "bin" / name
        old.parent.mkdir(exist_ok=True)
        old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit 0\nexit 1\n')
        old.chmod(0o755)
    told = start(clone, "serve", PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert "needs Python 3.11 or newer" in told.communicate(timeout=30)[1]
    assert told.returncode == 1
