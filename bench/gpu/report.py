"""Rows of results: printed and saved as they come, and a table of them at the end."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE = "gpu-check.jsonl"
BAD = ("failed", "DIFFERS")  # verdicts that make the run fail


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result. What does not apply is None or empty."""

    section: str
    name: str
    case: str = ""
    us: float | None = None
    gbs: float | None = None  # GB/s of the bytes that have to be moved
    tflops: float | None = None
    share: float | None = None  # of the ceiling that bounds it: floor / measured time
    value: float | None = None  # what the name says
    verdict: str = ""  # OK, DIFFERS, finding, failed, cut, skipped, yes, no
    note: str = ""

    def __str__(self) -> str:
        numbers = (
            (self.us, "{:.1f} us"),
            (self.gbs, "{:.0f} GB/s"),
            (self.tflops, "{:.1f} TFLOP/s"),
            (None if self.share is None else 100 * self.share, "{:.0f} % of the ceiling"),
            (self.value, "{:.4g}"),
        )
        shown = [form.format(number) for number, form in numbers if number is not None]
        texts = (self.section, self.name, self.case, *shown, self.verdict, self.note)
        return " | ".join(filter(None, texts))


class Report:
    """The rows of a run, in memory and in `FILE` of a folder."""

    def __init__(self, folder: Path, stamp: dict[str, Any]) -> None:
        """`stamp`: what each line says beside its `result`. Goes on behind earlier lines."""
        self._file = folder / FILE
        self._stamp = stamp
        self.rows: list[Row] = []
        if self._file.exists():
            lines = self._file.read_text(encoding="utf-8").splitlines()
            self.rows += [Row(**json.loads(line)["result"]) for line in lines]

    def add(self, row: Row) -> None:
        self.rows.append(row)
        print(row, flush=True)
        result = {name: value for name, value in asdict(row).items() if value not in (None, "")}
        with self._file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(self._stamp | {"result": result}) + "\n")

    @property
    def failed(self) -> bool:
        return any(row.verdict in BAD for row in self.rows)

    def table(self) -> str:
        """What the reader must not miss: times by case, and each verdict that is not OK."""
        lines = ["", "== times in us, by section and case"]
        cases = dict.fromkeys((row.section, row.case) for row in self.rows if row.us is not None)
        for section, case in cases:
            timed = [r for r in self.rows if (r.section, r.case) == (section, case) and r.us]
            lines.append(f"{section} {case}: {'; '.join(map(_short, timed))}")
        lines += _named("== other numbers", (r for r in self.rows if r.value is not None), ("",))
        lines += _named("== not as it should be", self.rows, BAD)
        lines += _named("== findings", self.rows, ("finding",))
        lines += _named("== cut for time", self.rows, ("cut",))
        lines += _named("== skipped", self.rows, ("skipped",))
        lines += _named("== goals", self.rows, ("yes", "no", "not measured"))
        compared = sum(row.verdict == "OK" for row in self.rows)
        return "\n".join([*lines, f"== {len(self.rows)} rows, {compared} comparisons OK"])


def _short(row: Row) -> str:
    share = "" if row.share is None else f" ({100 * row.share:.0f} %)"
    return f"{row.name} {row.us:.1f}{share}"


def _named(title: str, rows: Iterable[Row], verdicts: tuple[str, ...]) -> list[str]:
    """Rows with one of the verdicts; those that say the same of other cases only once."""
    found = {(row.name, row.note, row.value): row for row in rows if row.verdict in verdicts}
    return [title, *map(str, found.values())] if found else []
