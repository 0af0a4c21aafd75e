"""Recorded workloads as they stand in their files: who asked what, after what, and when.

Text sets (segments and requests), Mooncake's and the coding agents' block traces, Azure's lengths,
and what this server records. Tokens are made elsewhere: `tokens.py` for the simulator,
`bench/workloads.py` for a real server.
"""

import csv
import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

MOONCAKE_BLOCK = 512
AGENTIC_BLOCK = 64
AZURE_BLOCK = 512  # not in the recording, which has lengths only; what `block` is a part of
SEGMENTS, REQUESTS = "segments.jsonl.gz", "requests.jsonl.gz"


class Missing(Exception):
    """The data is not there or not readable; the message says what was looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What every recorded request has. `id` counts the requests of its set from 0."""

    id: int
    session: str
    max_out: int  # most tokens of the answer
    after: tuple[int, ...] = ()  # earlier requests of the session that must be finished first
    n: int = 1  # answers wanted
    at: float = 0.0  # arrival, seconds from the start of the trace (of its session: agentic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Recorded):
    """A chat, or one plain text if all roles are "".

    A part without text stands for the server's own answer to the request `after[0]`.
    """

    parts: tuple[tuple[str, str | None], ...]  # (role, text)
    outputs: tuple[str, ...] = ()  # recorded answers

    @property
    def plain(self) -> bool:
        return all(role == "" for role, _ in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks(Recorded):
    """Lengths and block ids. An id stands for one block and all before it, in the whole set.

    The first `covered` tokens of prompt + answer are those of the blocks, the others are this
    request's own. The answer has exactly `max_out` tokens.
    """

    runs: tuple[int, ...]  # (first id, how many, first id, how many, ...)
    block: int  # tokens of one block
    covered: int
    length: int  # tokens of the prompt
    namespace: tuple[str, int] = ("", 0)  # tenant, number of the namespace

    @property
    def ids(self) -> Iterator[int]:
        """Of all blocks in order."""
        for first, count in zip(self.runs[::2], self.runs[1::2], strict=True):
            yield from range(first, first + count)


@dataclass(frozen=True, slots=True)
class Steps:
    """Seconds that recorded steps took: rows of [prefill tokens, decode rows, seconds]."""

    rows: list[list[float]]


def read(path: Path, block: int = 0) -> Iterator[Recorded]:
    """The requests of a set, in file order.

    `path` is a folder with one set or a file. `block` shrinks a trace: so many tokens per recorded
    block, lengths likewise; the share of prompts that repeats stays the same. Raises `Missing`.
    """
    path = find(path)
    if path.name == REQUESTS:
        return read_text(path.parent)
    first = _first_line(path)
    if first.startswith("TIMESTAMP,"):
        return read_azure(path, block or AZURE_BLOCK)
    try:
        keys = json.loads(first)
    except json.JSONDecodeError:
        keys = None
    if isinstance(keys, dict):
        if "radixserve_trace" in keys:
            return read_recording(path, block)
        if "hash_ids" in keys:
            return read_mooncake(path, block or MOONCAKE_BLOCK)
        if "requests" in keys:
            return read_agentic(path, block or AGENTIC_BLOCK)
    raise Missing(f"{path}: no known form of trace")


def find(path: Path) -> Path:
    """The file of requests that `path` means."""
    if not path.exists():
        raise Missing(f"{path}: there is no such file or folder")
    if path.is_file():
        return path
    if (path / REQUESTS).exists():
        return path / REQUESTS
    traces = sorted(p for p in path.iterdir() if p.name.endswith((".gz", ".jsonl", ".csv")))
    if len(traces) == 1:
        return traces[0]
    if traces:
        raise Missing(f"{path} has several traces; name one: {', '.join(map(str, traces))}")
    raise Missing(f"{path} has no trace")


def _first_line(path: Path) -> str:
    """Empty if it is no line of text."""
    try:
        with opened(path) as file:
            return file.readline()
    except (EOFError, UnicodeDecodeError):
        return ""


@contextmanager
def opened(path: Path) -> Iterator[io.TextIOBase]:
    """A text file, compressed or not."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    opener: Any = gzip.open if packed else open
    with opener(path, "rt", encoding="utf-8") as text:
        yield text


def lines(path: Path, *, open_end: bool = False) -> Iterator[Any]:
    """The JSON value of every line. `open_end`: the writer may have been killed in a line."""
    number = 0
    try:
        with opened(path) as file:
            for line in file:
                number += 1
                if open_end and not line.endswith("\n"):
                    return
                yield json.loads(line)
    except EOFError as error:
        if not open_end:
            raise Missing(f"{path}, line {number}: {error}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise Missing(f"{path}, line {number}: {error}") from None


def shrunk(length: int, block: int, recorded: int) -> int:
    """A recorded length in tokens where `recorded` of them have become `block`, at least 1."""
    return max(1, -(-length * block // recorded))


def read_text(folder: Path) -> Iterator[Text]:
    segments: list[str] = list(lines(folder / SEGMENTS))
    sessions: dict[int, str] = {}
    for row in lines(folder / REQUESTS):
        sessions[row["id"]] = row["session"]
        for earlier in row.get("after", ()):
            if earlier >= row["id"] or sessions.get(earlier) != row["session"]:
                what = f"request {row['id']} comes after {earlier}"
                raise Missing(f"{folder}: {what}, which is no earlier one of its session")
        yield Text(
            id=row["id"],
            session=row["session"],
            max_out=row["max_out"],
            after=tuple(row.get("after", ())),
            n=row.get("n", 1),
            parts=tuple((role, None if k is None else segments[k]) for role, k in row["prompt"]),
            outputs=tuple(segments[k] for k in row.get("outputs", ())),
        )


def read_mooncake(path: Path, block: int) -> Iterator[Blocks]:
    for number, row in enumerate(lines(path)):
        length = shrunk(row["input_length"], block, MOONCAKE_BLOCK)
        yield Blocks(
            id=number,
            session=str(number),
            max_out=shrunk(row["output_length"], block, MOONCAKE_BLOCK),
            at=row["timestamp"] / 1000,
            runs=tuple(part for k in row["hash_ids"] for part in (k, 1)),
            block=block,
            covered=min(length, block * len(row["hash_ids"])),
            length=length,
        )


def calls(rows: list[dict[str, Any]], start: float) -> Iterator[tuple[float, dict[str, Any]]]:
    """(seconds from the session's start, row); calls of a sub-agent stand where it was started."""
    for row in rows:
        if row["type"] == "subagent":
            yield from calls(row["requests"], start + row["t"])
        else:
            yield start + row["t"], row


def read_agentic(path: Path, block: int) -> Iterator[Blocks]:
    """Sessions one after another; each call follows the one before it in its session.

    Ids mean something inside their session only, so each session's are moved behind the last's.
    """
    number = base = 0
    for session in lines(path):
        previous: tuple[int, ...] = ()
        end = base
        for at, row in calls(session["requests"], 0.0):
            runs = row["hash_runs"]
            yield Blocks(
                id=number,
                session=session["id"],
                max_out=shrunk(row["out"], block, AGENTIC_BLOCK),
                after=previous,
                at=at,
                runs=tuple(k if i % 2 else k + base for i, k in enumerate(runs)),
                block=block,
                covered=block * sum(runs[1::2]),
                length=shrunk(row["in"], block, AGENTIC_BLOCK),
            )
            ends = (a + b for a, b in zip(runs[::2], runs[1::2], strict=True))
            end = max(end, base + max(ends, default=0))
            previous = (number,)
            number += 1
        base = end


def read_azure(path: Path, block: int) -> Iterator[Blocks]:
    """Lengths and arrivals only: no two prompts share anything."""
    with opened(path) as file:
        start: datetime | None = None
        for number, row in enumerate(csv.DictReader(file)):
            now = datetime.fromisoformat(row["TIMESTAMP"][:26])
            start = start or now
            yield Blocks(
                id=number,
                session=str(number),
                max_out=shrunk(int(row["GeneratedTokens"]), block, AZURE_BLOCK),
                at=(now - start).total_seconds(),
                runs=(),
                block=block,
                covered=0,
                length=shrunk(int(row["ContextTokens"]), block, AZURE_BLOCK),
            )


# ---- this server's own recordings ----------------------------------------------------------------


def read_recording(path: Path, block: int = 0) -> Iterator[Blocks]:
    """Requests of a `--record-trace` file in order of arrival; they stand there as they ended.

    Whose prompt has a block of an earlier answer in it comes after the last request with that
    answer, in its session. Hashes become ids as they appear.
    """
    rows = lines(path, open_end=True)
    page = int(next(rows)["page_size"])
    block = block or page
    ids: dict[int, int] = {}
    answers: dict[int, int] = {}  # id of a block with tokens of an answer -> request
    sessions: list[str] = []
    asked = sorted((row for row in rows if "blocks" in row), key=lambda row: row["at"])
    for number, row in enumerate(asked):
        blocks = [ids.setdefault(key, len(ids)) for key in row["blocks"]]
        length, whole = shrunk(row["prompt"], block, page), row["prompt"] // page
        before = next((answers[k] for k in reversed(blocks[:whole]) if k in answers), None)
        sessions.append(str(number) if before is None else sessions[before])
        answers |= dict.fromkeys(blocks[whole:], number)
        yield Blocks(
            id=number,
            session=sessions[number],
            after=() if before is None else (before,),
            max_out=max(1, shrunk(row["prompt"] + row["output"], block, page) - length),
            at=row["at"],
            runs=tuple(part for k in blocks for part in (k, 1)),
            block=block,
            covered=block * len(blocks),
            length=length,
            namespace=(row["tenant"], row["ns"]),
        )


def recorded_steps(path: Path) -> Steps:
    """What the steps of a recording took. Raises `Missing` for another kind of file."""
    rows = lines(find(path), open_end=True)
    first = next(rows, None)
    if not isinstance(first, dict) or "radixserve_trace" not in first:
        raise Missing(f"{path}: only a recording of this server says what steps took")
    return Steps([row["step"] for row in rows if "step" in row])
