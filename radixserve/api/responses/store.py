"""Responses that may be read again and continued, in memory, within two bounds.

A response is a place in the conversations' tree: it holds its own items and points to the one that
it continues. One that was deleted, or had to make room, cannot be found any more; what continues it
stays whole, so its items are kept, and counted, until the last of those is gone.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

MAX_BYTES = 256 << 20  # of all that is kept, listed or not
OVERHEAD = 1024  # bytes counted for each response beside its JSON


class Stored:
    """`head` is the response without its output; `input` and `output` are lists of items. JSON."""

    __slots__ = ("head", "holds", "id", "input", "listed", "output", "parent", "produced")

    def __init__(self, head: dict[str, Any], input: Sequence[Any], parent: "Stored | None") -> None:
        """`head` with its output."""
        rest = dict(head)
        output = rest.pop("output")
        self.id: str = head["id"]
        self.head = msgspec.json.encode(rest)
        self.input = msgspec.json.encode(input)
        self.output = msgspec.json.encode(output)
        self.parent = parent
        self.produced = [item["id"] for item in output]
        self.holds = 0  # responses that continue it, and requests that are about to
        self.listed = True

    @property
    def size(self) -> int:
        return len(self.head) + len(self.input) + len(self.output) + OVERHEAD

    @property
    def response(self) -> dict[str, Any]:
        whole: dict[str, Any] = msgspec.json.decode(self.head)
        return whole | {"output": msgspec.json.decode(self.output)}

    @property
    def own_input(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = msgspec.json.decode(self.input)
        return items

    @property
    def items(self) -> list[dict[str, Any]]:
        """The whole conversation up to here, the oldest item first."""
        chain: list[Stored] = []
        node: Stored | None = self
        while node is not None:
            chain.append(node)
            node = node.parent
        return [
            item
            for node in reversed(chain)
            for part in (node.input, node.output)
            for item in msgspec.json.decode(part)
        ]


class ResponseStore:
    """At most `most` responses, those least recently used going first. No locks: one event loop."""

    def __init__(self, most: int, most_bytes: int = MAX_BYTES) -> None:
        self.num_bytes = 0
        self._most = most
        self._most_bytes = most_bytes
        self._listed: OrderedDict[str, Stored] = OrderedDict()
        self._makers: dict[str, Stored] = {}  # output item's id -> its response

    def __len__(self) -> int:
        return len(self._listed)

    def find(self, id: str) -> Stored | None:
        """A use of the response, if it is there."""
        found = self._listed.get(id)
        if found is not None:
            self._listed.move_to_end(id)
        return found

    def item(self, id: str) -> dict[str, Any] | None:
        """An output item of any response that can be found."""
        maker = self._makers.get(id)
        if maker is None:
            return None
        items: list[dict[str, Any]] = msgspec.json.decode(maker.output)
        return next(item for item in items if item["id"] == id)

    @contextmanager
    def hold(self, node: Stored) -> Iterator[None]:
        """Keep a node that was just found, and all it continues, meanwhile."""
        node.holds += 1
        try:
            yield
        finally:
            self._release(node)

    def add(self, node: Stored) -> None:
        """Its parent, if it has one, is held."""
        if node.parent is not None:
            node.parent.holds += 1
        self._listed[node.id] = node
        self._makers |= dict.fromkeys(node.produced, node)
        self.num_bytes += node.size
        while self._listed and (
            len(self._listed) > self._most or self.num_bytes > self._most_bytes
        ):
            self._unlist(next(iter(self._listed.values())))

    def delete(self, id: str) -> bool:
        """Whether there was one."""
        node = self._listed.get(id)
        if node is not None:
            self._unlist(node)
        return node is not None

    def _unlist(self, node: Stored) -> None:
        del self._listed[node.id]
        for item in node.produced:
            del self._makers[item]
        self.num_bytes -= len(node.head)
        node.head = b""
        node.listed = False
        node.holds += 1
        self._release(node)

    def _release(self, node: Stored) -> None:
        """One hold less; what nobody needs then goes, and the hold it had on its parent."""
        node.holds -= 1
        gone: Stored | None = node
        while gone is not None and not gone.holds and not gone.listed:
            self.num_bytes -= gone.size
            parent, gone.parent = gone.parent, None
            if parent is not None:
                parent.holds -= 1
            gone = parent
