"""A process in a terminal, for tests that press keys."""

import os
import pty
import re
import select
import subprocess
import sys
import time

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

    def interrupt(self, pattern: str) -> None:
        """Ctrl-C until `pattern` comes: one is lost that arrives while the line editor reads a key.

        Python's readline module looks for signals only where it waits for the next one.
        """
        for _ in range(30):
            self.type("\x03")
            try:
                self.wait_for(pattern, 1)
            except AssertionError:
                continue
            return
        raise AssertionError(f"{pattern!r} does not come; shown is {self.shown!r}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self._end)
