"""The chat in a terminal: Ctrl-C stops an answer, Ctrl-D ends, the history stays."""

import os
import pty
import re
import select
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import FakeServer, chunk, usage, whole

# takes its standard input as the terminal that Ctrl-C comes from
IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Terminal:
    """A process in a terminal of its own."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._end, inner = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            env=os.environ | {"TERM": "xterm"} | environment,
        )
        os.close(inner)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def wait_for(self, pattern: str, seconds: float = 30) -> re.Match[str]:
        """The first place in what is shown from here on that fits."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.shown):
                self.shown = self.shown[found.end() :]
                return found
            if select.select([self._end], [], [], 0.1)[0]:
                self.shown += os.read(self._end, 4096).decode(errors="replace")
        raise AssertionError(f"{pattern!r} does not come; shown is {self.shown!r}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self._end)


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
    terminal.type("\x03")
    terminal.wait_for("0> ")
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
    terminal.type("\x04")
    assert terminal.process.wait(20) == 0
    history = tmp_path / "radixserve/chat_history"
    assert history.read_text().splitlines()[-1].strip() == "/tree"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
