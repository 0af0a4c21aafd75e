"""Requests of the recorded workloads in ../shared/data, ready to be sent to a server.

Text sets become chats or plain prompts; traces of block ids become prompts of pseudo-random token
ids that share exactly what the recorded prompts shared. Sends nothing; bench/serve.py does.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path

from radixserve.simulate.workloads import Blocks, Missing, Recorded, Text, read

DATA = Path(__file__).parents[2] / "shared" / "data"
TRACES = {
    "mooncake_conversation": "mooncake/conversation_trace.jsonl.gz",
    "mooncake_synthetic": "mooncake/synthetic_trace.jsonl.gz",
    "agentic_code": "agentic_code/sessions.jsonl.gz",
    "azure_code": "azure_llm_2023/AzureLLMInferenceTrace_code.csv.gz",
    "azure_conv": "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz",
}
IDS = range(1000, 20000)  # ordinary tokens in every vocabulary we know


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
    for request in map(prepared, read(data / TRACES.get(name, name), block)):
        if limit and len(chosen) == limit:
            break
        if (longest and request.length > longest) or dropped.intersection(request.after):
            dropped.add(request.id)
        else:
            chosen[request.id] = request
    return list(chosen.values())


def prepared(recorded: Recorded) -> Request:
    """The request as a server takes it."""
    messages: tuple[tuple[str, str | None], ...] = ()
    prompt: str | list[int] = []
    if isinstance(recorded, Blocks):
        prompt = tokens_of(recorded)
    elif isinstance(recorded, Text) and recorded.plain:
        prompt = "".join(text or "" for _, text in recorded.parts)
    elif isinstance(recorded, Text):
        messages = chat(recorded.parts)
    return Request(
        id=recorded.id,
        session=recorded.session,
        max_out=recorded.max_out,
        messages=messages,
        prompt=prompt,
        n=recorded.n,
        after=recorded.after,
        at=recorded.at,
    )


def chat(parts: tuple[tuple[str, str | None], ...]) -> tuple[tuple[str, str | None], ...]:
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


def tokens_of(recorded: Blocks) -> list[int]:
    """Token ids of a prompt: those of a block depend on its id alone, the rest on the request."""

    def drawn(seed: str, count: int) -> list[int]:
        return random.Random(seed).choices(IDS, k=count)

    covered = min(recorded.covered, recorded.length)
    ids: list[int] = []
    for number in recorded.ids:
        if len(ids) >= covered:
            break
        ids += drawn(f"block {number}", recorded.block)
    own = recorded.length - covered
    return ids[:covered] + drawn(f"own {recorded.id}", own)
