"""Size budget: prints the lines of every room; fails on files over 400 lines, functions over 60.

Kernel functions may have 150. Exceptions stand with a reason in [tool.radixserve.sizes]; one that
is no longer needed fails too. Called by scripts/check.
"""

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 400
FUNCTION_LINES = 60
KERNEL_LINES = 150
FOLDERS = ("radixserve", "radixserve_kernels", "bench", "scripts", "tests")


def room(path: Path) -> str:
    """The part of the tree that a file (relative to the root) is counted under."""
    inside = len(path.parts) > 2 and path.parts[0] in ("radixserve", "tests")
    return "/".join(path.parts[:2]) if inside else path.parts[0]


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Name and number of lines of every function, decorators not counted."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None, "parsed from text, so positions are known"
            yield node.name, node.end_lineno - node.lineno + 1


def too_long(path: Path, source: str) -> Iterator[tuple[str, str]]:
    """What is over the budget: (the name that excuses it, a sentence)."""
    lines = source.count("\n")
    if lines > FILE_LINES:
        yield str(path), f"{path}: {lines} lines, at most {FILE_LINES}"
    limit = KERNEL_LINES if path.parts[0] == "radixserve_kernels" else FUNCTION_LINES
    for name, length in functions(source):
        if length > limit:
            yield f"{path}:{name}", f"{path}: {name} has {length} lines, at most {limit}"


def check(root: Path) -> tuple[Counter[str], list[str]]:
    """Lines by room, and a sentence for every breach under `root`."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    excused = project.get("tool", {}).get("radixserve", {}).get("sizes", {})
    lines: Counter[str] = Counter()
    used: set[str] = set()
    breaches = []
    for file in sorted(f for folder in FOLDERS for f in (root / folder).rglob("*.py")):
        path, source = file.relative_to(root), file.read_text()
        lines[room(path)] += source.count("\n")
        for name, sentence in too_long(path, source):
            used.add(name)
            if name not in excused:
                breaches.append(sentence)
    breaches += [f"{name}: listed in pyproject.toml but short" for name in excused.keys() - used]
    return lines, breaches


def main() -> int:
    lines, breaches = check(Path(__file__).parent.parent)
    for name, count in sorted(lines.items()):
        print(f"{count:7,}  {name}")
    program = sum(n for name, n in lines.items() if name.startswith("radixserve"))
    print(f"{lines.total():7,}  all, {program:,} of them the program")
    print(*breaches, sep="\n", end="\n" if breaches else "")
    return bool(breaches)


if __name__ == "__main__":
    sys.exit(main())
