"""Python and the installed packages, against what the project declares."""

import platform
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Any

from radixserve.doctor.finding import Finding, fail, ok

PROJECT = Path(__file__).parents[2] / "pyproject.toml"  # in a checkout only


def declared(project: Path = PROJECT) -> tuple[str, list[str]]:
    """(bound on Python, requirements without those of extras), of the checkout or the package."""
    if project.is_file():
        table: dict[str, Any] = tomllib.loads(project.read_text())["project"]
        return table["requires-python"], table["dependencies"]
    told = metadata("radixserve")
    wanted = told.get_all("Requires-Dist") or []
    return told["Requires-Python"], [line for line in wanted if "extra ==" not in line]


def python() -> Iterator[Finding]:
    """Its version; at the bound, which no other package is needed to read."""
    bound, _ = declared()
    least = tuple(int(part) for part in bound.removeprefix(">=").split("."))
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < least:
        yield fail("python", text, f"radixserve needs {bound}")
    else:
        yield ok("python", text)


def packages() -> Iterator[Finding]:
    """One line for each that is wrong, else one for all."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        yield fail("packages", "packaging is not installed", "pip install packaging")
        return
    _, lines = declared()
    wrong = 0
    for wanted in map(Requirement, lines):
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            found = ""
        if not wanted.specifier.contains(found or "0", prereleases=True):
            wrong += 1
            text = f"{wanted.name} {found or 'is not installed'}, needed is {wanted.specifier}"
            yield fail("packages", text, f"pip install '{wanted}'")
    if not wrong:
        yield ok("packages", f"all {len(lines)} that are needed are there")
