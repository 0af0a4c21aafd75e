"""The chat in a terminal: Ctrl-C stops an answer, Ctrl-D ends, the history stays."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import FakeServer, chunk, usage, whole
from tests.cli.terminal import Terminal


@pytest.fixture
def terminal(fake: FakeServer, tmp_path: Path) -> Iterator[Terminal]:
    arguments = ("-m", "radixserve", "chat", "--url", fake.url)
    running = Terminal(*arguments, XDG_STATE_HOME=str(tmp_path), NO_COLOR="")
    running.wait_for("fake at .*commands")
    running.wait_for("0> ")
    yield running
    running.close()


def test_ctrl_c_stops_an_answer_and_keeps_what_came(fake: FakeServer, terminal: Terminal) -> None:
    part = chunk("Once upon", usage=usage(9, 3, 2))
    fake.answers = [[chunk(), part, None], whole("Hello!")]
    terminal.type("tell me\n")
    terminal.wait_for("Once upon")
    assert fake.waiting.wait(10)
    terminal.type("\x03")
    terminal.wait_for(r"\x1b\[2mprompt 9 tokens, 3 from cache .*; stopped")
    assert fake.left.wait(10)  # the connection was closed: the server aborts
    terminal.wait_for("1> ")
    terminal.type("go on\n")
    terminal.wait_for("Hello!")
    said = [message["content"] for message in fake.asked[1]["messages"]]
    assert said == ["tell me", "Once upon", "go on"]
    terminal.wait_for("2> ")
    terminal.type("\x04")
    assert terminal.process.wait(20) == 0


def test_ctrl_c_drops_a_line_and_nothing_else(fake: FakeServer, terminal: Terminal) -> None:
    terminal.type("never sent")
    terminal.wait_for("never sent")  # the line editor is there
    terminal.interrupt("0> ")
    terminal.type("sent\n")
    terminal.wait_for("1> ")
    assert [body["messages"][-1]["content"] for body in fake.asked] == ["sent"]
    terminal.type("/quit\n")
    assert terminal.process.wait(20) == 0


def test_nothing_is_kept_of_an_answer_that_had_not_begun(
    fake: FakeServer, terminal: Terminal
) -> None:
    fake.answers = [[None]]
    terminal.type("tell me\n")
    assert fake.waiting.wait(20)
    terminal.type("\x03")
    terminal.wait_for("0> ")


def test_the_history_is_its_owners(fake: FakeServer, terminal: Terminal, tmp_path: Path) -> None:
    pytest.importorskip("readline")
    terminal.type("first\n")
    terminal.wait_for("1> ")
    terminal.type("\x1b[A\n")  # the line before
    terminal.wait_for("2> ")
    assert [body["messages"][-1]["content"] for body in fake.asked] == ["first", "first"]
    terminal.type("/tr\t\n")  # completed
    terminal.wait_for(r"\* 2 first")
    terminal.wait_for("2> ")  # typed before, it would be nobody's
    terminal.type("\x04")
    assert terminal.process.wait(20) == 0
    history = tmp_path / "radixserve/chat_history"
    assert history.read_text().splitlines()[-1].strip() == "/tree"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
