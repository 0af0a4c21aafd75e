"""The chat against a server that the test plays: what it sends, shows and forgives."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from radixserve.cli.chat import Chat, summary
from radixserve.cli.client import Client, Failed
from radixserve.cli.screen import Keyboard, Screen, harmless
from radixserve.cli.tree import Turn, Usage
from tests.cli.conftest import DONE, FakeServer, chunk, whole


class Terminal:
    """A chat whose output is kept."""

    def __init__(self, fake: FakeServer, **asked: object) -> None:
        self.out = io.StringIO()
        screen = Screen(self.out, styled=False)
        self.chat = Chat(Client(fake.url), screen, dict(asked), interactive=False)

    def type(self, *lines: str) -> str:
        """What is shown after these lines."""
        before = len(self.out.getvalue())
        left = list(lines)

        def read(prompt: str) -> str:
            if not left:
                raise EOFError
            return left.pop(0)

        self.chat.run(Keyboard(read, prompts=False))
        return self.out.getvalue()[before:]


def contents(body: dict) -> list[str]:
    return [message["content"] for message in body["messages"]]


def test_an_answer_and_what_it_took(fake: FakeServer) -> None:
    fake.answers = [whole("Hello!", prompt=812, cached=790, answer=31)]
    shown = Terminal(fake, max_tokens=7).type("hi")
    answer, line = shown.splitlines()
    assert answer == "Hello!"
    assert line.startswith("prompt 812 tokens, 790 from cache (97%), 22 new; 31 tokens in ")
    assert "first after" in line
    body = fake.asked[0]
    assert body["max_tokens"] == 7 and body["stream"] is True and "model" not in body
    assert body["messages"] == [{"role": "user", "content": "hi"}]


def test_a_path_through_the_tree(fake: FakeServer) -> None:
    fake.answers = [whole(text) for text in ("A", "B", "C", "B2", "D")]
    terminal = Terminal(fake)
    shown = terminal.type(
        "a", "b", "/back 2", "c", "/go 2", "/retry", "/system be brief", "/branch 1", "/tree", "d"
    )
    assert [contents(body) for body in fake.asked] == [
        ["a"],
        ["a", "A", "b"],
        ["c"],
        ["a", "A", "b"],
        ["a", "A", "d"],  # turn 1 was asked under no system message
    ]
    drawn = [line for line in shown.splitlines() if "→" in line]
    assert [line.partition("  [")[0] for line in drawn] == [
        "* ├─ 1 a → A",
        "  │  ├─ 2 b → B",
        "  │  └─ 4 b → B2",
        "  └─ 3 c → C",
    ]
    assert "[10 prompt, 4 cached, 2 new]" in drawn[0]
    assert terminal.chat.tree.place == 5 and not terminal.chat.failed


def test_a_system_message_counts_from_there_on(fake: FakeServer) -> None:
    Terminal(fake).type("a", "/system be brief", "b", "/system", "c")
    systems = [body["messages"][0] for body in fake.asked]
    assert [message["role"] for message in systems] == ["user", "system", "user"]


def test_several_lines(fake: FakeServer) -> None:
    Terminal(fake).type(
        "a\\", "b", '"""', "c", "", "d", '"""', '"""e"""', "//f", "  ", "/quit", "g"
    )
    assert [contents(body)[-1] for body in fake.asked] == ["a\nb", "c\n\nd", "e", "/f"]


def test_reasoning_is_shown_apart(fake: FakeServer) -> None:
    fake.answers = [[chunk(reasoning_content="Hm."), *whole("Yes.")]]
    out = io.StringIO()
    chat = Chat(Client(fake.url), Screen(out, styled=True), {}, interactive=True)
    chat.take("?")
    assert out.getvalue().startswith("\x1b[2mHm.\x1b[0m\nYes.\n\x1b[2mprompt ")
    chat.take("?")
    assert contents(fake.asked[1]) == ["?", "Yes.", "?"]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            (400, {}, b'{"error": {"message": "the context is 8 tokens\\nlong"}}'),
            "! 400: the context is 8 tokens long",
        ),
        (
            (401, {}, b'{"error": {"message": "the API key is missing or wrong"}}'),
            "! 401: the API key is missing or wrong; give --api-key",
        ),
        (
            (503, {"Retry-After": "5"}, b'{"error": {"message": "busy"}}'),
            "! 503: busy; try again in 5 s",
        ),
        ((502, {}, b"<html>"), "! 502: Bad Gateway"),
        ([b'data: {"error": {"message": "it died"}}\n\n'], "! the server says: it died"),
        ([chunk("Hel")], "Hel\n! the server ended the answer in the middle"),
        ([b"data: what?\n\n"], "does not speak the protocol"),
        ((204, {}, b""), "! 204: No Content"),
    ],
)  # fmt: skip
def test_a_failure_is_one_line_and_the_chat_goes_on(
    fake: FakeServer, answer: object, says: str
) -> None:
    fake.answers = [answer, whole("Hello!")]
    terminal = Terminal(fake)
    shown = terminal.type("a", "b")
    failure, _, after = shown.partition("Hello!")
    assert says in failure and after.startswith("\nprompt 10 tokens")
    assert failure.count("!") == 1 and terminal.chat.failed
    kept = [turn.answer for turn in terminal.chat.tree.turns]
    assert kept == (["Hel", "Hello!"] if "Hel\n" in says else ["Hello!"])


def test_nobody_listens(fake: FakeServer) -> None:
    terminal = Terminal(fake)
    terminal.chat._client = Client("http://127.0.0.1:1")
    terminal.chat.greet()
    shown = terminal.type("a", "/tree")
    assert "nobody listens at http://127.0.0.1:1: start `radixserve serve`" in shown
    assert shown.endswith("* at the start\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/nothing", "there is no /nothing"),
        ("/back", "0 turns above, not 1"),
        ("/back x", "x is not a whole number"),
        ("/go", "nothing is not a whole number"),
        ("/go 9", "there is no turn 9"),
        ("/retry", "no answer yet"),
        ("/branch", "no answer yet"),
        ("/save", "which file?"),
        ("/load /nowhere/x", "/nowhere/x: No such file or directory"),
        ("/save /nowhere/x", "/nowhere/x: No such file or directory"),
    ],
)
def test_a_command_that_cannot_be_done(fake: FakeServer, line: str, says: str) -> None:
    shown = Terminal(fake).type(line)
    assert shown.startswith("! ") and says in shown and shown.count("\n") == 1
    assert not fake.asked


def test_moves_in_a_chat_that_has_no_turns(fake: FakeServer) -> None:
    assert Terminal(fake).type("/go 0", "/back 0", "/branch 0") == "at the start\n" * 3


def test_a_retry_that_fails_leaves_everything_where_it_was(fake: FakeServer) -> None:
    fake.answers = [whole("A"), whole("B"), (503, {}, b""), whole("B2")]
    terminal = Terminal(fake)
    terminal.type("a", "/system s", "b", "/retry", "/retry")
    assert [contents(body)[-1] for body in fake.asked] == ["a", "b", "b", "b"]
    assert contents(fake.asked[3]) == ["s", "a", "A", "b"]
    assert [(turn.parent, turn.answer) for turn in terminal.chat.tree.turns] == [
        (0, "A"), (1, "B"), (1, "B2")
    ]  # fmt: skip


def test_ctrl_c_ends_a_pipe(fake: FakeServer) -> None:
    fake.answers = [[chunk("Once"), None]]
    command = [sys.executable, "-m", "radixserve", "chat", "--url", fake.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b"a\nb\n")
        process.stdin.flush()
        process.stdout.readline()  # the greeting
        assert process.stdout.read(4) == b"Once"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert len(fake.asked) == 1


def test_help_names_all_and_a_saved_chat_comes_back(fake: FakeServer, tmp_path: Path) -> None:
    first = Terminal(fake)
    assert "/branch [N]" in first.type("/help")
    first.type("a", "b", f"/save {tmp_path}/x.json")
    second = Terminal(fake)
    second.type(f"/load {tmp_path}/x.json", "c")
    assert contents(fake.asked[-1]) == ["a", "Hello!", "b", "Hello!", "c"]
    saved = json.loads((tmp_path / "x.json").read_text())
    assert saved["turns"][1]["usage"] == {"prompt": 10, "cached": 4, "answer": 2}


def test_a_model_cannot_command_the_terminal(fake: FakeServer) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\rx\x9b31m\u202eabc\x7f\x08\x00 ok\tü🎉"
    fake.answers = [[chunk(evil, reasoning_content=evil), chunk(finish_reason="stop"), DONE]]
    shown = Terminal(fake).type(evil, "/tree", f"/{evil}", f"/load {evil}")
    assert not {*shown} & {*"\x1b\x07\r\x9b\u202e\x7f\x08\x00"}
    assert "ok\tü🎉" in shown and "\u241b" in shown


def test_harmless_leaves_text_alone() -> None:
    text = "Grüße, 世界 👩‍👩‍👧\n\tא"  # joiners and right-to-left letters are text
    assert harmless(text) == text


def test_a_server_that_tells_less() -> None:
    assert summary(Turn(0, "?", finish="stop"), 1.0, 0.0) == "in 1.0 s"
    told = summary(Turn(0, "?", finish="length", usage=Usage(5, None, 2)), 1.0, 0.5)
    assert told == "prompt 5 tokens; 2 tokens in 1.0 s, first after 0.50 s; cut at its limit"


def test_urls(fake: FakeServer) -> None:
    for url in (fake.url, f"{fake.url}/v1/", fake.url.removeprefix("http://")):
        assert Client(url).model() == "fake"
    for wrong in ("ftp://x", "http://", ""):
        with pytest.raises(ValueError, match="not the URL"):
            Client(wrong)
    with pytest.raises(Failed):
        Client("http://127.0.0.1:1").model()


def run(fake: FakeServer, text: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "radixserve", "chat", "--url", fake.url, *flags],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_in_a_pipe(fake: FakeServer) -> None:
    done = run(fake, "a\nb", "--api-key", "k", "--system", "s", "--temperature", "0")
    assert (done.returncode, done.stderr) == (0, "")
    greeting, answer, line, *_ = done.stdout.splitlines()
    assert greeting == f"fake at {fake.url}; /help tells the commands"
    assert answer == "Hello!" and line.startswith("prompt 10 tokens")
    assert [contents(body) for body in fake.asked] == [["s", "a"], ["s", "a", "Hello!", "b"]]
    assert fake.asked[0]["model"] == "fake" and fake.asked[0]["temperature"] == 0
    assert fake.headers[0]["Authorization"] == "Bearer k"


def test_a_pipe_that_fails_says_so(fake: FakeServer) -> None:
    fake.answers = [(503, {}, b"")]
    assert run(fake, "a\n").returncode == 1
    assert run(fake, "a\n", "--url", "ftp://x").returncode == 2


def test_a_key_that_no_header_can_hold(fake: FakeServer) -> None:
    done = run(fake, "a\n", "--api-key", "ключ")
    assert (done.returncode, done.stderr) == (1, "")
    assert all(line.startswith("! ") for line in done.stdout.splitlines())
