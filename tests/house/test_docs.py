"""What the documents name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("bench/*.md")])
NAMED = re.compile(r"`((?:\.ci|bench|requirements|scripts)/[\w./-]*)[^`]*`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)[^)]*\)")
MODULE = re.compile(r"python -m (bench(?:\.\w+)*)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_exist(document: Path) -> None:
    text = document.read_text()
    modules = [name.replace(".", "/") + ".py" for name in MODULE.findall(text)]
    missing = [name for name in NAMED.findall(text) + modules if not (ROOT / name).exists()]
    missing += [name for name in LINK.findall(text) if not (document.parent / name).exists()]
    assert not missing


def test_scripts_are_executable_and_ci_runs_them() -> None:
    for name in ("scripts/serve", "scripts/test", "scripts/check", "scripts/setup", ".ci/run"):
        assert (ROOT / name).stat().st_mode & 0o111, name
        assert (ROOT / name).read_text().startswith("#!/usr/bin/env bash\n"), name
    assert "scripts/test" in (ROOT / ".ci/run").read_text()
