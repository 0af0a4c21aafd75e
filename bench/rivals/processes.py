"""One run of the measuring stick, which starts a server, asks it and stops it; nothing outlives it.

Processes are known by pid and start time, so that a pid that was given out again is left alone.
"""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WATCH = 1.0  # seconds between two looks at the tree: each costs 10 ms of a core
GRACE = 45.0  # seconds in which the stick may stop its server
TAIL = 8  # lines of a log that are kept
PLACE = re.compile(r"(?<![\w:/.])(?:/[\w.@+-]+)+/")  # the folder of a file


class Failed(Exception):
    """No figures from this run; the message has the last lines of the logs."""


@dataclass(frozen=True)
class Process:
    """A process of /proc as it was seen."""

    pid: int
    parent: int
    session: int
    started: int  # in ticks since boot


def processes() -> list[Process]:
    """All that live; those that ended and wait for their parent are not among them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            if words[0] not in "ZX":
                parent, session, started = int(words[1]), int(words[3]), int(words[19])
                found.append(Process(int(entry.name), parent, session, started))
    return found


class Tree:
    """What a process started, and what that started, also where the one between is gone."""

    def __init__(self, root: int) -> None:
        """`root` leads a session of its own, so whoever is in that session is one of the tree."""
        self._sessions = {root}
        self._seen: set[tuple[int, int]] = set()

    def look(self) -> list[Process]:
        """Those of the tree that live now. Call it often: some orphans are known by that only."""
        alive = processes()
        found: dict[int, Process] = {}
        before = -1
        while len(found) > before:
            before = len(found)
            for process in alive:
                if self._belongs(process, found):
                    found[process.pid] = process
                    self._sessions.add(process.session)
        self._seen |= {(process.pid, process.started) for process in found.values()}
        return list(found.values())

    def end(self) -> None:
        """Kill what is left of it."""
        deadline = time.monotonic() + 10
        while (left := self.look()) and time.monotonic() < deadline:
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.02)

    def _belongs(self, process: Process, found: dict[int, Process]) -> bool:
        known = (process.pid, process.started) in self._seen
        return known or process.parent in found or process.session in self._sessions


def run(
    command: Sequence[str], out: Path, server_log: Path, cwd: Path, limit: float
) -> dict[str, Any]:
    """The figures that the stick `command` leaves in `out`. Raises `Failed`."""
    stick_log = server_log.with_suffix(".stick.log")
    out.unlink(missing_ok=True)
    with stick_log.open("wb") as log:
        stick = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        tree = Tree(stick.pid)
        try:
            late = not ended(stick, tree, limit)
            if late:
                stick.terminate()
                ended(stick, tree, GRACE)
        finally:
            tree.end()
            stick.wait()
    if late:
        raise Failed(f"no end after {limit:g} s; {last_lines(server_log)}")
    if stick.returncode or not out.exists():
        raise Failed(f"{last_lines(stick_log, 2)}; its log: {last_lines(server_log)}")
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def ended(stick: subprocess.Popen[bytes], tree: Tree, limit: float) -> bool:
    """Whether it ended within the limit, in seconds."""
    deadline = time.monotonic() + limit
    while stick.poll() is None:
        tree.look()
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        with suppress(subprocess.TimeoutExpired):
            stick.wait(min(WATCH, left))
    return True


def last_lines(log: Path, count: int = TAIL) -> str:
    """The end of a log in one line, without the places of files on this machine."""
    if not log.exists():
        return "no log"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 8192))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()[-count:]
    text = " | ".join(line.strip() for line in lines if line.strip())
    return PLACE.sub("", text)[-1500:] or "it is empty"


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
