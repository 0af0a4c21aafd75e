"""Requests of the recorded workloads in ../shared/data, ready to be sent to a server.

Text sets become chats or plain prompts; traces of block ids become prompts of pseudo-random token
ids that share exactly what the recorded prompts shared. Sends nothing; bench/serve.py does.
"""

import csv
import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "shared" / "data"
TRACES = {
    "mooncake_conversation": "mooncake/conversation_trace.jsonl.gz",
    "mooncake_synthetic": "mooncake/synthetic_trace.jsonl.gz",
    "agentic_code": "agentic_code/sessions.jsonl.gz",
    "azure_code": "azure_llm_2023/AzureLLMInferenceTrace_code.csv.gz",
    "azure_conv": "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz",
}
MOONCAKE_BLOCK = 512
AGENTIC_BLOCK = 64
AZURE_BLOCK = 512  # not in the recording, which has lengths only; what `block` is a part of
IDS = range(1000, 20000)  # ordinary tokens in every vocabulary we know


class Missing(Exception):
    """The data is not there; the message says where it was looked for."""


@dataclass(frozen=True)
class Request:
    """One request. Either `messages` (a chat) or `prompt` (text or token ids) is filled.

    A message content of None stands for the server's own answer to the request `after[0]`.
    """

    id: int
    session: str
    max_out: int
    messages: tuple[tuple[str, str | None], ...] = ()  # (role, content)
    prompt: str | list[int] = field(default_factory=list)
    n: int = 1
    after: tuple[int, ...] = ()  # ids of requests that must be finished first
    at: float = 0.0  # arrival, seconds from the start of a trace

    @property
    def length(self) -> int:
        """Tokens of an id prompt, words of a text: enough to leave out the very long ones."""
        if self.messages:
            return sum(len((content or "").split()) for _, content in self.messages)
        return len(self.prompt.split() if isinstance(self.prompt, str) else self.prompt)


def names(data: Path = DATA) -> list[str]:
    """The sets that are there."""
    text = [path.parent.name for path in data.glob("*/requests.jsonl.gz")]
    return sorted(text + [name for name, path in TRACES.items() if (data / path).exists()])


def load(
    name: str, *, data: Path = DATA, limit: int = 0, longest: int = 0, block: int = 0
) -> list[Request]:
    """The first `limit` requests (0: all) of a set, in file order.

    Requests longer than `longest` (words or tokens; 0: none) are left out with all that follow from
    them. `block` shrinks a trace: so many tokens per recorded block, lengths likewise; the share of
    prompts that repeats stays the same. Raises `Missing`.
    """
    if name not in names(data):
        known = ", ".join(names(data)) or "nothing"
        raise Missing(f"no set {name!r} in {data}; there is: {known}")
    chosen: dict[int, Request] = {}
    dropped: set[int] = set()
    for request in read(name, data, block):
        if limit and len(chosen) == limit:
            break
        if (longest and request.length > longest) or dropped.intersection(request.after):
            dropped.add(request.id)
        else:
            chosen[request.id] = request
    return list(chosen.values())


def read(name: str, data: Path, block: int) -> Iterator[Request]:
    """All requests of a set, lazily."""
    if name not in TRACES:
        return read_text(data / name)
    path = data / TRACES[name]
    if name.startswith("mooncake"):
        return read_mooncake(path, block or MOONCAKE_BLOCK)
    if name == "agentic_code":
        return read_agentic(path, block or AGENTIC_BLOCK)
    return read_azure(path, block or AZURE_BLOCK)


def lines(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


# ---- text ----------------------------------------------------------------------------------------


def read_text(folder: Path) -> Iterator[Request]:
    segments: list[str] = list(lines(folder / "segments.jsonl.gz"))
    for row in lines(folder / "requests.jsonl.gz"):
        parts = [(role, None if k is None else segments[k]) for role, k in row["prompt"]]
        plain = all(role == "" for role, _ in parts)
        yield Request(
            id=row["id"],
            session=row["session"],
            max_out=row["max_out"],
            messages=() if plain else chat(parts),
            prompt="".join(text or "" for _, text in parts) if plain else [],
            n=row.get("n", 1),
            after=tuple(row.get("after", ())),
        )


def chat(parts: list[tuple[str, str | None]]) -> tuple[tuple[str, str | None], ...]:
    """Recorded roles as system, user and assistant, which every server and template takes.

    Tool schemas go to the end of the system message, tool results become the user's messages: what
    repeats between prompts stays the same, whatever a template makes of tools.
    """
    messages: list[tuple[str, str | None]] = []
    for role, text in parts:
        if role == "tools" and messages and messages[-1][0] == "system":
            messages[-1] = ("system", f"{messages[-1][1]}\n\n{text}")
        else:
            messages.append(({"tools": "system", "tool": "user"}.get(role, role), text))
    return tuple(messages)


# ---- traces --------------------------------------------------------------------------------------


def tokens_of(scope: str, blocks: Iterator[int] | list[int], block: int, length: int) -> list[int]:
    """`length` token ids, `block` for each id: a function of scope, id and position alone."""
    ids: list[int] = []
    for number in blocks:
        if len(ids) >= length:
            break
        ids += random.Random(f"{scope}/{number}").choices(IDS, k=block)
    return ids[:length]


def shrunk(length: int, block: int, recorded: int) -> int:
    """A recorded length in tokens where `recorded` of them have become `block`, at least 1."""
    return max(1, -(-length * block // recorded))


def read_mooncake(path: Path, block: int) -> Iterator[Request]:
    for number, row in enumerate(lines(path)):
        length = shrunk(row["input_length"], block, MOONCAKE_BLOCK)
        yield Request(
            id=number,
            session=str(number),
            max_out=shrunk(row["output_length"], block, MOONCAKE_BLOCK),
            prompt=tokens_of("mooncake", row["hash_ids"], block, length),
            at=row["timestamp"] / 1000,
        )


def calls(rows: list[dict[str, Any]], start: float) -> Iterator[tuple[float, dict[str, Any]]]:
    """(seconds from the session's start, row); calls of a sub-agent stand where it was started."""
    for row in rows:
        if row["type"] == "subagent":
            yield from calls(row["requests"], start + row["t"])
        else:
            yield start + row["t"], row


def read_agentic(path: Path, block: int) -> Iterator[Request]:
    """Sessions one after another; each call follows the one before it in its session."""
    number = 0
    for session in lines(path):
        previous: tuple[int, ...] = ()
        for at, row in calls(session["requests"], 0.0):
            runs = zip(row["hash_runs"][::2], row["hash_runs"][1::2], strict=True)
            ids = [k for start, count in runs for k in range(start, start + count)]
            length = shrunk(row["in"], block, AGENTIC_BLOCK)
            # The end of a prompt, less than a block, has no id: it is this request's own.
            blocks = [*ids, -1 - number]
            yield Request(
                id=number,
                session=session["id"],
                max_out=shrunk(row["out"], block, AGENTIC_BLOCK),
                prompt=tokens_of(session["id"], blocks, block, length),
                after=previous,
                at=at,
            )
            previous = (number,)
            number += 1


def read_azure(path: Path, block: int) -> Iterator[Request]:
    """Lengths and arrivals only: no two prompts share anything."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        start: datetime | None = None
        for number, row in enumerate(csv.DictReader(file)):
            now = datetime.fromisoformat(row["TIMESTAMP"][:26])
            start = start or now
            length = shrunk(int(row["ContextTokens"]), block, AZURE_BLOCK)
            yield Request(
                id=number,
                session=str(number),
                max_out=shrunk(int(row["GeneratedTokens"]), block, AZURE_BLOCK),
                prompt=tokens_of("azure", [number], length, length),
                at=(now - start).total_seconds(),
            )
