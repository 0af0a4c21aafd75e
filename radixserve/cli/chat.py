"""The chat itself: reads questions and commands, shows answers, and keeps the tree.

Without a terminal it reads a question from each line and writes plain text, so it fits in a pipe.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from radixserve.cli.client import Client, Failed
from radixserve.cli.screen import BLOCK, Keyboard, Screen, edit_lines
from radixserve.cli.tree import Tree, Turn, Usage, load
from radixserve.config import plain_terminal, state_home

QUESTION, ANSWER = 40, 40  # characters of a turn that a line of /tree shows


class Chat:
    """One conversation with one server. `failed`: whether a question had no whole answer."""

    def __init__(
        self, client: Client, screen: Screen, asked: dict[str, Any], *, interactive: bool
    ) -> None:
        """`asked`: what each request has beside its messages; the model too, if it is known.

        `interactive`: somebody sits there, so that Ctrl-C ends an answer or a line, not all.
        """
        self.tree = Tree()
        self.failed = False
        self._client = client
        self._screen = screen
        self._asked = asked
        self._interactive = interactive

    def run(self, keyboard: Keyboard) -> None:
        """Until the input ends or /quit."""
        while True:
            try:
                text = keyboard.question(f"{self.tree.place}> ")
                self._screen.fresh_line()
                self.take(text)
            except EOFError:
                self._screen.write("\n" * self._interactive)
                return
            except KeyboardInterrupt:
                if not self._interactive:
                    raise
                self._screen.write("\n")

    def take(self, text: str) -> None:
        """A question, or a command if it begins with one slash. What fails is one line."""
        if not text.strip():
            return
        try:
            if text.startswith("//"):
                self.ask(text[1:])
            elif text.startswith("/"):
                self._command(*text.partition(" ")[::2])
            else:
                self.ask(text)
        except (Failed, ValueError) as error:
            self._complain(str(error))
        except OSError as error:
            self._complain(f"{error.filename}: {error.strerror}")

    def greet(self) -> None:
        """Say who is there; take the server's model if none was named."""
        try:
            model = self._asked.setdefault("model", self._client.model())
        except Failed as error:
            self._complain(str(error))
            return
        self._screen.line(f"{model} at {self._client.url}; /help tells the commands", dim=True)

    def ask(self, question: str) -> None:
        """Have `question` answered here, and go on from its answer. Ctrl-C ends it as it is."""
        turn = Turn(self.tree.place, question, system=self.tree.system)
        body = self._asked | {"messages": self.tree.messages(question)}
        began, first = time.monotonic(), 0.0
        try:
            with closing(self._client.stream(body)) as pieces:
                for piece in pieces:
                    if not first and (piece.content or piece.reasoning):
                        first = time.monotonic() - began
                    begins = bool(piece.content) and not turn.answer
                    turn.add(piece)  # first: Ctrl-C may come at any time
                    self._screen.write(piece.reasoning, dim=True)
                    if begins:
                        self._screen.end_line()  # of the reasoning
                    self._screen.write(piece.content)
        except KeyboardInterrupt:
            turn.finish = "stopped"
            if not self._interactive:
                raise
        except Failed:
            turn.finish = "error"
            raise
        finally:
            self.failed |= turn.finish == "error"
            if turn.answer or turn.reasoning or turn.finish in ("stop", "length"):
                self.tree.add(turn)
            self._screen.end_line()
        self._screen.line(summary(turn, time.monotonic() - began, first), dim=True)

    def _complain(self, text: str) -> None:
        self._screen.line(f"! {' '.join(text.split())}")

    def _command(self, name: str, argument: str) -> None:
        command = COMMANDS.get(name)
        if command is None:
            raise ValueError(f"there is no {name}; /help tells what there is")
        command.run(self, argument.strip())

    def _here(self) -> None:
        """Say where the next question goes."""
        where = "at the start"
        if place := self.tree.place:
            where = f"after {place}: {short(self.tree.turns[place - 1].question, 60)}"
        self._screen.line(where, dim=True)

    def branch(self, argument: str) -> None:
        self.tree.branch(number(argument) if argument else None)
        self._here()

    def back(self, argument: str) -> None:
        self.tree.back(number(argument) if argument else 1)
        self._here()

    def go(self, argument: str) -> None:
        self.tree.go(number(argument))
        self._here()

    def retry(self, argument: str) -> None:
        if not self.tree.place:
            raise ValueError("there is no answer yet to have another one for")
        here = self.tree.place
        turn = self.tree.turns[here - 1]
        self.tree.back(1)
        self.tree.system = turn.system
        parent = self.tree.place
        try:
            self.ask(turn.question)
        finally:
            if self.tree.place == parent:  # no answer came
                self.tree.go(here)

    def show(self, argument: str) -> None:
        for art, id in self.tree.rows():
            mark = "*" if id == self.tree.place else " "
            self._screen.line(f"{mark} {art}{row(id, self.tree.turns[id - 1])}")
        if not self.tree.place:
            self._screen.line("* at the start")

    def system(self, argument: str) -> None:
        self.tree.system = argument
        self._screen.line("system message set" if argument else "no system message", dim=True)

    def save(self, argument: str) -> None:
        path = file(argument)
        self.tree.save(path)
        self._screen.line(f"{len(self.tree.turns)} turns in {path}", dim=True)

    def load(self, argument: str) -> None:
        self.tree = load(file(argument))
        self._here()

    def help(self, argument: str) -> None:
        for name, command in COMMANDS.items():
            self._screen.line(f"{f'{name} {command.takes}':<16} {command.help}")
        self._screen.line(NOTES)


NOTES = f"""A line that ends in \\ goes on in the next one, {BLOCK} begins and ends several lines.
What begins with // is a question that begins with /. Ctrl-C stops an answer and keeps it."""


class Command(NamedTuple):
    """One line of /help."""

    takes: str
    help: str
    run: Callable[[Chat, str], None]


def _quit(chat: Chat, argument: str) -> None:
    raise EOFError


COMMANDS = {
    "/branch": Command(
        "[N]", "go on from turn N of this path; else ask the last one anew", Chat.branch
    ),
    "/back": Command("[N]", "go up N turns (1)", Chat.back),
    "/go": Command("ID", "go to a turn of the tree", Chat.go),
    "/tree": Command("", "all turns; * is where you are", Chat.show),
    "/retry": Command("", "another answer to the last question", Chat.retry),
    "/system": Command("[TEXT]", "the system message from here on", Chat.system),
    "/save": Command("FILE", "keep the tree as JSON", Chat.save),
    "/load": Command("FILE", "take a tree that was saved", Chat.load),
    "/help": Command("", "this", Chat.help),
    "/quit": Command("", "end; Ctrl-D too", _quit),
}


def number(argument: str) -> int:
    """A whole number that a command takes. ValueError if it is none."""
    if not argument.isdecimal():
        raise ValueError(f"{argument or 'nothing'} is not a whole number")
    return int(argument)


def file(argument: str) -> Path:
    """A file that a command takes. ValueError if none is named."""
    if not argument:
        raise ValueError("which file?")
    return Path(argument).expanduser()


def short(text: str, most: int) -> str:
    """The beginning of `text` in one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def row(id: int, turn: Turn) -> str:
    """A turn in one line, with what the cache gave to its prompt."""
    answer = short(turn.answer or turn.reasoning, ANSWER)
    counts = ""
    if usage := turn.usage:
        counts = f"  [{usage.prompt} prompt, {usage.cached or 0} cached, {usage.answer} new]"
    return f"{id} {short(turn.question, QUESTION)} → {answer}{counts}"


def summary(turn: Turn, seconds: float, first: float) -> str:
    """What an answer took."""
    told = [cost(turn.usage)] if turn.usage else []
    answer = f"{turn.usage.answer} tokens " if turn.usage else ""
    told.append(f"{answer}in {seconds:.1f} s" + (f", first after {first:.2f} s" if first else ""))
    if turn.finish != "stop":
        told.append({"length": "cut at its limit"}.get(turn.finish, turn.finish or "no end told"))
    return "; ".join(told)


def cost(usage: Usage) -> str:
    """The prompt of an answer, and what of it was computed."""
    if usage.cached is None:
        return f"prompt {usage.prompt} tokens"
    share = usage.cached / usage.prompt if usage.prompt else 0.0
    return (
        f"prompt {usage.prompt} tokens, {usage.cached} from cache ({share:.0%}),"
        f" {usage.prompt - usage.cached} new"
    )


def parser() -> argparse.ArgumentParser:
    """The command line of `radixserve chat`."""
    p = argparse.ArgumentParser(
        prog="radixserve chat", description="A chat in the terminal that branches."
    )
    p.add_argument("--url", default="http://127.0.0.1:30000", help="the server")
    p.add_argument("--api-key", default="", help="its key, if it asks for one")
    p.add_argument("--model", help="model id (default: the server's first)")
    p.add_argument("--system", default="", help="the system message")
    p.add_argument("--max-tokens", type=int, help="most tokens of an answer")
    p.add_argument("--temperature", type=float, help="0: always the likeliest token")
    return p


def main(argv: Sequence[str]) -> int:
    """0; 1 if the input was no terminal and a question had no whole answer; 130 after Ctrl-C."""
    p = parser()
    args = p.parse_args(argv)
    try:
        client = Client(args.url, args.api_key)
    except ValueError as error:
        p.error(f"argument --url: {error}")
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    names = ("model", "max_tokens", "temperature")
    asked = {name: value for name in names if (value := getattr(args, name)) is not None}
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # what pipes may hold
    screen = Screen(sys.stdout, styled=interactive and not plain_terminal())
    chat = Chat(client, screen, asked, interactive=interactive)
    chat.tree.system = args.system
    keep = (
        edit_lines(state_home() / "chat_history", list(COMMANDS)) if interactive else lambda: None
    )
    try:
        chat.greet()
        chat.run(Keyboard(input, prompts=interactive))
    except KeyboardInterrupt:
        return 130
    finally:
        keep()
    return int(chat.failed and not interactive)
