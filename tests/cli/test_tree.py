"""The tree of turns: what is sent from each place, and how it is drawn and kept."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.cli.tree import START, Tree, Turn, Usage, load


def ask(tree: Tree, question: str, answer: str = "") -> int:
    return tree.add(Turn(tree.place, question, answer or question.upper(), system=tree.system))


def grown() -> Tree:
    """1 - 2 - 3, 4 beside 3, 5 at the start."""
    tree = Tree(system="be brief")
    for question in ("a", "b", "c"):
        ask(tree, question)
    tree.branch(None)
    ask(tree, "d")
    tree.go(START)
    ask(tree, "e")
    return tree


def said(tree: Tree) -> list[str]:
    return [message["content"] for message in tree.messages("?")]


def test_what_is_sent_is_the_path() -> None:
    tree = grown()
    assert said(tree) == ["be brief", "e", "E", "?"]
    tree.go(4)
    assert said(tree) == ["be brief", "a", "A", "b", "B", "d", "D", "?"]
    assert [message["role"] for message in tree.messages("?")] == [
        "system", "user", "assistant", "user", "assistant", "user", "assistant", "user"
    ]  # fmt: skip


def test_moves() -> None:
    tree = grown()
    tree.go(4)
    for move, place in [
        (lambda: tree.back(1), 2),
        (lambda: tree.back(2), START),
        (lambda: tree.go(3), 3),
        (lambda: tree.branch(1), 1),
        (lambda: tree.back(0), 1),
        (lambda: tree.branch(0), START),
    ]:
        move()
        assert tree.place == place


@pytest.mark.parametrize(
    ("move", "says"),
    [
        (lambda tree: tree.back(2), "1 turns above, not 2"),
        (lambda tree: tree.go(6), "no turn 6"),
        (lambda tree: tree.branch(2), "1 turns, not 2"),
        (lambda tree: (tree.go(START), tree.branch(None)), "no answer yet"),
    ],
)
def test_moves_that_lead_nowhere(move, says: str) -> None:
    tree = grown()
    with pytest.raises(ValueError, match=says):
        move(tree)


def test_a_place_has_its_system_message() -> None:
    tree = grown()
    tree.system = "be long"
    ask(tree, "f")
    tree.go(4)
    assert tree.system == "be brief"
    tree.go(6)
    assert tree.system == "be long"


def test_the_drawing_grows_wider_only_where_it_branches() -> None:
    assert [f"{art}{id}" for art, id in grown().rows()] == [
        "├─ 1",
        "│  2",
        "│  ├─ 3",
        "│  └─ 4",
        "└─ 5",
    ]
    tree = Tree()
    for number in range(3000):  # no recursion
        ask(tree, str(number))
    assert list(tree.rows()) == [("", id) for id in range(1, 3001)]


@given(st.lists(st.integers(0, 30), max_size=30))
def test_each_turn_is_drawn_once_after_its_parent(choices: list[int]) -> None:
    tree = Tree()
    for number, choice in enumerate(choices):
        tree.go(choice % (number + 1))
        ask(tree, str(number))
    seen: list[int] = [START]
    for _, id in tree.rows():
        assert tree.turns[id - 1].parent in seen
        seen.append(id)
    assert sorted(seen) == list(range(len(choices) + 1))


def test_kept_and_taken_again(tmp_path: Path) -> None:
    tree, path = grown(), tmp_path / "chat.json"
    tree.turns[0].usage = Usage(10, 4, 3)
    tree.save(path)
    assert load(path) == tree
    tree.go(2)
    tree.save(path)  # over itself
    assert load(path).place == 2


def test_no_other_file_is_written_over(tmp_path: Path) -> None:
    other = tmp_path / "letter.txt"
    other.write_text("Dear all")
    with pytest.raises(ValueError, match="no saved chat"):
        grown().save(other)
    assert other.read_text() == "Dear all"


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"turns": 7}',
        '{"place": 1}',
        '{"place": -1}',
        '{"turns": [{"parent": 1, "question": "x"}]}',
        '{"turns": [{"parent": -1, "question": "x"}]}',
        '{"other": 1}',
        "\ud83d".encode("utf-16-le", "surrogatepass").decode("latin-1"),
    ],
)
def test_what_is_no_saved_chat(tmp_path: Path, text: str) -> None:
    path = tmp_path / "chat.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="no saved chat"):
        load(path)
