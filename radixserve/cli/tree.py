"""A conversation as a tree: each turn goes on from another one, and any turn can go on twice."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

START = 0  # the place before the first turn


class Usage(Struct):
    """Tokens of one answer. `cached`: of the prompt, not computed; None: the server did not say."""

    prompt: int
    cached: int | None
    answer: int


class Piece(Struct):
    """What came at once: some text of the answer or of its reasoning, or what is known by now."""

    content: str = ""
    reasoning: str = ""
    finish: str = ""
    usage: Usage | None = None


class Turn(Struct, forbid_unknown_fields=True):
    """One question with its answer. `parent` is the id of the turn before it, or START."""

    parent: int
    question: str
    answer: str = ""
    reasoning: str = ""
    system: str = ""  # the system message that it was asked under
    finish: str = ""  # the server's reason, "stopped" by the user, or "error"
    usage: Usage | None = None

    def add(self, piece: Piece) -> None:
        self.answer += piece.content
        self.reasoning += piece.reasoning
        self.finish = piece.finish or self.finish
        self.usage = piece.usage or self.usage


class Tree(Struct, forbid_unknown_fields=True):
    """All turns of a chat, and the place where it stands. Turn `turns[i]` has the id i + 1.

    Ids are given in order and never again, so a parent's id is below its children's.
    """

    turns: list[Turn] = []
    place: int = START
    system: str = ""  # of the next question

    def path(self, id: int) -> list[int]:
        """Ids from the first turn to `id`."""
        ids = []
        while id != START:
            ids.append(id)
            id = self.turns[id - 1].parent
        return ids[::-1]

    def messages(self, question: str) -> list[dict[str, str]]:
        """What to send to have `question` answered at this place."""
        out = [{"role": "system", "content": self.system}] if self.system else []
        for id in self.path(self.place):
            turn = self.turns[id - 1]
            out += [
                {"role": "user", "content": turn.question},
                {"role": "assistant", "content": turn.answer},
            ]
        return [*out, {"role": "user", "content": question}]

    def add(self, turn: Turn) -> int:
        """Put `turn` where its parent is, and go there. Its id."""
        self.turns.append(turn)
        self.place = len(self.turns)
        return self.place

    def go(self, id: int) -> None:
        """Stand after turn `id`, under its system message. ValueError if there is no such turn."""
        if not 0 <= id <= len(self.turns):
            raise ValueError(f"there is no turn {id}; /tree shows those there are")
        self.place = id
        if id != START:
            self.system = self.turns[id - 1].system

    def back(self, count: int) -> None:
        """Go up `count` turns. ValueError if there are not so many above."""
        path = [START, *self.path(self.place)]
        if not 0 <= count < len(path):
            raise ValueError(f"there are {len(path) - 1} turns above, not {count}")
        self.go(path[-1 - count])

    def branch(self, count: int | None) -> None:
        """Stand after the first `count` turns of this path; None: before its last one."""
        depth = len(self.path(self.place))
        if count is None and not depth:
            raise ValueError("there is no answer yet to branch off before")
        if count is not None and not 0 <= count <= depth:
            raise ValueError(f"this path has {depth} turns, not {count}")
        self.back(1 if count is None else depth - count)

    def rows(self) -> Iterator[tuple[str, int]]:
        """(line art, id) of each turn, depth first. Only where it branches a tree grows wider."""
        children: dict[int, list[int]] = {}
        for id, turn in enumerate(self.turns, 1):
            children.setdefault(turn.parent, []).append(id)
        waiting = _stacked(children.get(START, []), "")
        while waiting:
            id, own, below = waiting.pop()
            yield own, id
            waiting += _stacked(children.get(id, []), below)

    def save(self, path: Path) -> None:
        """Write the tree as JSON. ValueError rather than over a file that is something else."""
        if path.exists():
            load(path)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)))


def _stacked(ids: list[int], art: str) -> list[tuple[int, str, str]]:
    """(id, line art of its row, and of the rows below) of siblings, the first one on top."""
    if len(ids) < 2:
        return [(id, art, art) for id in ids]
    *firsts, last = ids
    rows = [(id, art + "├─ ", art + "│  ") for id in firsts]
    return [*rows, (last, art + "└─ ", art + "   ")][::-1]


def load(path: Path) -> Tree:
    """The tree that was saved in `path`. OSError, or ValueError if it is none."""
    try:
        tree = msgspec.json.decode(path.read_bytes(), type=Tree)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no saved chat: {error}") from error
    parents: list[Any] = [turn.parent for turn in tree.turns]
    if not all(0 <= parent <= i for i, parent in enumerate(parents)):
        raise ValueError(f"{path} is no saved chat: a turn stands before its parent")
    if not 0 <= tree.place <= len(tree.turns):
        raise ValueError(f"{path} is no saved chat: it stands at no turn")
    return tree
