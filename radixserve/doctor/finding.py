"""What a check has found. Standard library only."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `advice`: what to do about it."""

    check: str
    state: Literal["ok", "warn", "fail"]
    text: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f" -> {self.advice}" if self.advice else ""
        return f"{self.state:<5} {self.check:<10} {self.text}{advice}"


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def warn(check: str, text: str, advice: str = "") -> Finding:
    """Something is worse than it could be; the server runs."""
    return Finding(check, "warn", text, advice)


def fail(check: str, text: str, advice: str = "") -> Finding:
    """The server cannot run, or not as asked."""
    return Finding(check, "fail", text, advice)
