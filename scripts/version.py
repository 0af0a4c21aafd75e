"""Checks that pyproject.toml, radixserve.__version__ and the top of CHANGELOG.md name one version.

The top heading is `## [X.Y.Z] - Unreleased` while a version is in the making.
Called by scripts/check.
"""

import re
import sys
import tomllib
from pathlib import Path

HEADING = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (Unreleased|\d{4}-\d\d-\d\d)$", re.MULTILINE)


def versions(root: Path) -> dict[str, str]:
    """File -> the version it names, "" if none."""
    heading = HEADING.search((root / "CHANGELOG.md").read_text())
    package = re.search(
        r'^__version__ = "(.+)"$', (root / "radixserve/__init__.py").read_text(), re.MULTILINE
    )
    return {
        "pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text())["project"][
            "version"
        ],
        "CHANGELOG.md": heading[1] if heading else "",
        "radixserve/__init__.py": package[1] if package else "",
    }


def main() -> int:
    found = versions(Path(__file__).parent.parent)
    if len(set(found.values())) == 1:
        return 0
    print(
        *(f"{file} names version {version or '(none)'}" for file, version in found.items()),
        sep="\n",
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
