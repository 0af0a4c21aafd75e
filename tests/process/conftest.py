"""A tiny checkpoint and real servers on it: three processes, real sockets, a real port."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.checkpoints import tiny_checkpoint


@dataclass
class Server:
    """One run of `python -m radixserve.launch`."""

    process: subprocess.Popen[str]
    url: str = ""
    log: list[str] = field(default_factory=list)
    reader: threading.Thread | None = None

    @functools.cached_property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120)

    def post(self, path: str, body: dict[str, object]) -> httpx.Response:
        return self.http.post(path, json=body)

    def children(self) -> dict[str, int]:
        """Process name -> pid of the three children."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                stat = (entry / "stat").read_text() if entry.name.isdigit() else ""
                command = (entry / "cmdline").read_bytes().decode() if stat else ""
            except OSError:
                continue
            if stat and int(stat.rpartition(")")[2].split()[1]) == self.process.pid:
                for name in ("api", "scheduler", "worker"):
                    if f"radixserve.{name}.process" in command:
                        found[name] = int(entry.name)
        return found

    def metric(self, name: str) -> float:
        """The value of one sample without labels in /metrics."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise KeyError(name)

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Signal the launcher; its exit code."""
        self.process.send_signal(how)
        return self.ended(30)

    def ended(self, seconds: float) -> int:
        """The launcher's exit code, when it has ended; closes what we have open of it."""
        code = self.process.wait(seconds)
        if self.reader:
            self.reader.join(seconds)
        assert self.process.stdout and self.process.stderr
        self.process.stdout.close()
        self.process.stderr.close()
        self.http.close()
        return code


def start(folder: Path | None, *flags: str) -> Server:
    """Launch a server on a free port and wait for the line with its URL.

    On the checkpoint in `folder`; None: on the embedded model.
    """
    model = ["--model-path", str(folder)] if folder else []
    command = [sys.executable, "-m", "radixserve.launch", *model, "--port", "0"]
    process = subprocess.Popen(
        [*command, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    server = Server(process)
    assert process.stderr and process.stdout
    stderr = process.stderr
    server.reader = threading.Thread(target=lambda: server.log.extend(stderr), daemon=True)
    server.reader.start()
    line = process.stdout.readline()
    server.url = line.split()[-1] if line else ""
    return server


def gone(pids: list[int], seconds: float = 10) -> bool:
    """Whether all processes have ended within `seconds`."""
    return eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), seconds)


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether `condition` becomes true within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[Server]:
    running = start(checkpoint, "--max-total-tokens", "4096")
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture
def own_server(checkpoint: Path) -> Iterator[Server]:
    """A server that the test may kill."""
    running = start(checkpoint, "--max-total-tokens", "4096")
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.ended(30)
