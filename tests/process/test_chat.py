"""`radixserve chat` with a real server: what the cache gave, and answers that are stopped."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from tests.process.conftest import Server, eventually

pytestmark = pytest.mark.process

ABORTED = "radixserve_scheduler_aborted_requests_total"
STORY = "The quick brown fox jumps over the lazy dog while seven wizards boxed up the honey."


def chat(server: Server, text: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "radixserve", "chat", "--url", server.url, *flags],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_conversation_hits_the_cache(server: Server) -> None:
    lines = (STORY, STORY, "/retry", "/tree")
    done = chat(server, "\n".join(lines), "--max-tokens", "8", "--temperature", "0")
    assert (done.returncode, done.stderr) == (0, "")
    found = re.findall(r"prompt (\d+) tokens, (\d+) from cache", done.stdout)
    first, second, again = [(int(prompt), int(cached)) for prompt, cached in found]
    assert first[0] < second[0] == again[0]
    assert first[0] - 16 <= second[1] < again[1] < again[0]
    assert len(re.findall(r"\[\d+ prompt, \d+ cached, \d+ new\]", done.stdout)) == 3


def test_a_context_that_is_too_long_is_one_line(server: Server) -> None:
    done = chat(server, f"{STORY * 60}\nhi\n", "--max-tokens", "2")
    assert done.returncode == 1
    assert [line for line in done.stdout.splitlines() if line.startswith("! 400: ")]
    assert done.stdout.count("from cache") == 1


def test_ctrl_c_aborts_the_request(server: Server, tmp_path: Path) -> None:
    before = server.metric(ABORTED)
    arguments = ("-m", "radixserve", "chat", "--url", server.url, "--temperature", "0")
    terminal = Terminal(*arguments, XDG_STATE_HOME=str(tmp_path))
    try:
        terminal.wait_for("0> ")
        terminal.type(f"{STORY}\n")
        terminal.wait_for(r"honey\.\r\n[^\r\n]")  # the first of the answer
        terminal.type("\x03")
        terminal.wait_for("from cache .*stopped")
        assert eventually(lambda: server.metric(ABORTED) == before + 1)
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.process.wait(20) == 0
    finally:
        terminal.close()
