"""The recorded sets beside this clone, their figures in BOUNDS.md, and small sets made here."""

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from radixserve.messages import Namespace, pack
from radixserve.simulate.tokens import Call
from radixserve.simulate.workloads import Blocks

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(
    not DATA.exists(), reason="the recorded workloads are not beside this clone"
)


def table(heading: str) -> dict[str, list[str]]:
    """The rows of a table in BOUNDS.md by name, or name/order."""
    if not DATA.exists():
        return {}
    part = (DATA / "BOUNDS.md").read_text().split(f"### {heading}")[1].split("\n#")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in part.splitlines()
        if line.startswith("|")
    ]
    two = rows[0][1] == "order" if rows else False
    return {"/".join(row[: 1 + two]): row for row in rows[2:]}


def text_sets() -> list[str]:
    return sorted(path.parent.name for path in DATA.glob("*/requests.jsonl.gz"))


def write(path: Path, rows: Iterable[Any]) -> Path:
    """JSON lines, compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def text_set(folder: Path, requests: Sequence[dict[str, Any]], segments: Sequence[str]) -> Path:
    """A set in the common format; ids are filled in."""
    write(folder / "segments.jsonl.gz", segments)
    rows = [{"id": k, "session": "s", "max_out": 4} | row for k, row in enumerate(requests)]
    write(folder / "requests.jsonl.gz", rows)
    return folder


def blocks(number: int, **more: Any) -> Blocks:
    """A request of lengths: one block of four tokens that all share, then two of its own."""
    given = {"session": str(number), "max_out": 2, "runs": (0, 1), "block": 4, "covered": 4}
    return Blocks(**given | {"id": number, "length": 6} | more)


def call(prompt: Sequence[int], output: Sequence[int] = (99,), name: str = "") -> Call:
    return Call(name, pack(prompt), pack(output), Namespace())
