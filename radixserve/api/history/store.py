"""The remembered answers of one server, bounded, least recently used first to go. Thread-safe."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

from msgspec import Struct

from radixserve.messages import INT32_BYTES
from radixserve.parsing.calls import Call, arguments_object, call_key

TURN_COST = 128  # tokens that a turn counts for beside its own: keys, places, text


class Said(Struct, frozen=True):
    """An answer as its client got it."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()

    def same(self, other: "Said") -> bool:
        """But for whitespace at the borders and the spelling of arguments."""
        return (
            self.content.strip() == other.content.strip()
            and self.reasoning.strip() == other.reasoning.strip()
            and [call_key(c) for c in self.calls] == [call_key(c) for c in other.calls]
        )

    def message(self) -> dict[str, Any]:
        """As templates take it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": c.name, "arguments": _object(c)}}
                for c in self.calls
            ]
        return message


def _object(call: Call) -> object:
    found = arguments_object(call.arguments)
    return call.arguments if found is None else found


class Splice(Struct, frozen=True, eq=False):
    """In a prompt's text, the tokens of `turn` stand for the characters from its start to `end`."""

    turn: "Turn"
    end: int


class Turn(Struct, frozen=True, eq=False):
    """One answer and its place: at the end of a prompt.

    `key`: of the conversation up to and with it. `answer`: int32 token ids, without the one that
    ended it. `start`: characters of the prompt's text, `digest`: of that text. `before`: the last
    splice in it.
    """

    key: bytes
    said: Said
    answer: bytes
    start: int
    digest: bytes
    before: Splice | None = None

    @property
    def cost(self) -> int:
        return len(self.answer) // INT32_BYTES + TURN_COST

    def path(self) -> Iterator["Turn"]:
        """It and all before it in its prompt, the first one last."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.before.turn if turn.before else None


class TurnStore:
    """Turns by their keys (`keys.py`).

    A turn that cannot be found any more is kept, and counted, while one is that builds on it.
    """

    def __init__(self, most: int) -> None:
        """`most`: tokens, a turn's `cost` each."""
        self._most = most
        self._size = 0
        self._turns: OrderedDict[bytes, Turn] = OrderedDict()
        self._holds: dict[Turn, int] = {}  # of each that is kept: 1 if it is found, 1 for each next
        self._lock = Lock()

    @property
    def size(self) -> int:
        """The cost of all turns that are kept."""
        return self._size

    def add(self, turn: Turn) -> None:
        with self._lock:
            self._hold(turn)
            if old := self._turns.pop(turn.key, None):
                self._drop(old)
            self._turns[turn.key] = turn
            for each in turn.path():  # none goes before what builds on it
                if self._turns.get(each.key) is each:
                    self._turns.move_to_end(each.key)
            while self._size > self._most:
                self._drop(self._turns.popitem(last=False)[1])

    def _hold(self, turn: Turn) -> None:
        for each in turn.path():
            self._holds[each] = self._holds.get(each, 0) + 1
            if self._holds[each] > 1:
                return
            self._size += each.cost

    def _drop(self, turn: Turn) -> None:
        """One hold less; what nobody needs then goes, and the hold it had on the one before."""
        for each in turn.path():
            self._holds[each] -= 1
            if self._holds[each]:
                return
            del self._holds[each]
            self._size -= each.cost

    def find(self, keys: Sequence[bytes]) -> Mapping[bytes, Turn]:
        """Those of the keys that are known; counts as a use of each, the first one's the latest.

        So of a conversation the later turns go first, which nothing else builds on.
        """
        found = {}
        with self._lock:
            for key in reversed(keys):
                if turn := self._turns.get(key):
                    self._turns.move_to_end(key)
                    found[key] = turn
        return found
