"""Greps for what the project has banned, by syntax where that is meant and by text otherwise.

Exceptions stand with a reason in [tool.radixserve.patterns]. Called by scripts/check.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("radixserve", "radixserve_kernels")
ADVICE = {
    "pickle": "pickle runs what it reads: use msgspec",
    "environ": "settings come from radixserve/config.py, not from the environment",
    "print": "use logging",
    "cache-import": "cache/ needs the standard library and sortedcontainers only",
    "name": "call a file after what it does, not utils, common, helpers, misc or manager",
    "home": "a path of one person's machine",
}
PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve"}
BAD_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager"}
HOME = re.compile(r"(?<![\w.])/(?:home/[a-z]|Users/[A-Za-z]|root/)")
TEXT = {".py", ".md", ".toml", ".txt", ".sh", ".yml", ".yaml", ".json", ".jsonl", ""}


def imports(node: ast.AST) -> list[str]:
    """Absolute names that one statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []


def foreign_to_cache(name: str) -> bool:
    top = name.partition(".")[0]
    own = f"{name}.".startswith("radixserve.cache.")
    return not own and top not in sys.stdlib_module_names and top != "sortedcontainers"


def in_syntax(path: Path, tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(name of the ban, line) for what a package file does that it may not."""
    in_cache = path.parts[:2] == ("radixserve", "cache")
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for name in imports(node):
            if name.partition(".")[0] in PICKLES:
                yield "pickle", line
            if in_cache and foreign_to_cache(name):
                yield "cache-import", line
        if isinstance(node, ast.Attribute | ast.alias | ast.Name):
            word = getattr(node, "attr", None) or getattr(node, "name", None)
            if (word or getattr(node, "id", "")) in ("environ", "getenv", "putenv", "environb"):
                yield "environ", line
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ):
            yield "print", line


def breaches(root: Path, paths: list[Path]) -> Iterator[str]:
    """A sentence for each banned thing in `paths` (relative to `root`)."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    excused = project.get("tool", {}).get("radixserve", {}).get("patterns", {})
    for path in paths:
        found: list[tuple[str, int]] = []
        if path.suffix in TEXT:
            lines = (root / path).read_text(errors="replace").splitlines()
            found += [("home", i) for i, line in enumerate(lines, 1) if HOME.search(line)]
        if path.suffix == ".py" and path.parts[0] in PACKAGES:
            found += in_syntax(path, ast.parse((root / path).read_text()))
            if path.stem in BAD_NAMES:
                found.append(("name", 1))
        for ban, line in found:
            if ban not in excused.get(str(path), []):
                yield f"{path}:{line}: {ban}: {ADVICE[ban]}"


def tracked(root: Path) -> list[Path]:
    """Files that git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [
        Path(name) for name in sorted(set(names.split("\0"))) if name and (root / name).is_file()
    ]


def main() -> int:
    root = Path(__file__).parent.parent
    found = list(breaches(root, tracked(root)))
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
