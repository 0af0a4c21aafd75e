"""What the user sees and types. Texts of a model cannot do anything to the terminal."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

try:
    import readline
except ImportError:  # a Python that was built without it: plain lines
    readline = None  # type: ignore[assignment]

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
HISTORY_LINES = 1000
BLOCK = '"""'  # begins and ends a question of several lines


def _shown(code: int) -> str:
    """A control character as a picture of itself where there is one."""
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


CONTROLS = (  # C0 but for tab and newline, DEL, C1; what turns the direction of text; separators
    *(code for code in range(0x20) if chr(code) not in "\t\n"),
    *range(0x7F, 0xA0),
    *(0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)),
    *range(0xD800, 0xE000),  # halves of a pair: no text at all
)
HARMLESS = {code: _shown(code) for code in CONTROLS}


def harmless(text: str) -> str:
    """`text` without what a terminal would obey. Lines and tabs stay."""
    return text.translate(HARMLESS)


class Screen:
    """One output. With `styled`, side remarks are dim."""

    def __init__(self, out: TextIO, *, styled: bool) -> None:
        self._out = out
        self._styled = styled
        self._column = 0  # whether something stands in this line

    def write(self, text: str, *, dim: bool = False) -> None:
        """Some text, made harmless, at once."""
        if not text:
            return
        shown = harmless(text)
        self._column = not shown.endswith("\n")
        self._out.write(f"{DIM}{shown}{PLAIN}" if dim and self._styled else shown)
        self._out.flush()

    def line(self, text: str, *, dim: bool = False) -> None:
        """A whole line, below whatever stands there."""
        self.end_line()
        self.write(text + "\n", dim=dim)

    def end_line(self) -> None:
        if self._column:
            self.write("\n")

    def fresh_line(self) -> None:
        """Somebody else, the user or the terminal, has ended the line."""
        self._column = 0


class Keyboard:
    """Where lines come from. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""

    def __init__(self, read: Callable[[str], str], *, prompts: bool) -> None:
        """`read`: gives a line without its end, after it has shown a prompt."""
        self._read = read
        self._prompts = prompts

    def question(self, prompt: str) -> str:
        """One question: a line, with the next if it ends in a backslash, or a block in quotes."""
        line = self._line(prompt)
        if line.lstrip().startswith(BLOCK):
            return self._block(line.lstrip().removeprefix(BLOCK))
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._line("... "))
        return "\n".join(lines)

    def _block(self, line: str) -> str:
        lines = []
        while BLOCK not in line:
            lines.append(line)
            line = self._line("... ")
        lines.append(line.partition(BLOCK)[0])
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str:
        return self._read(prompt if self._prompts else "")


def edit_lines(history: Path, words: Sequence[str]) -> Callable[[], None]:
    """Line editing with a history in the file `history`, and Tab for `words` at a line's start.

    Returns what keeps the history; the file is readable by its owner only.
    """
    if readline is None:
        return lambda: None

    def complete(text: str, number: int) -> str | None:
        fitting = [word for word in words if word.startswith(text) and text]
        return fitting[number] if number < len(fitting) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    if history.is_file():
        readline.read_history_file(history)
    readline.set_history_length(HISTORY_LINES)

    def keep() -> None:
        history.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(history, os.O_CREAT | os.O_WRONLY, 0o600))
        readline.write_history_file(history)

    return keep
