"""The server that suites are run against: one that runs already, or one of our own."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conform.install import BUILD, ROOT

START_SECONDS = 600  # the first start unpacks the embedded model
STOP_SECONDS = 30


class Target(NamedTuple):
    """`model_path` is where the server has its model from."""

    url: str
    key: str
    model: str
    model_path: str


class NotThere(Exception):
    """There is no server to be asked; the message says why."""


def ask(url: str, key: str, path: str) -> Any:
    request = urllib.request.Request(url + path, headers={"authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except OSError as error:
        raise NotThere(f"{url}{path}: {error}") from error


def found(url: str, key: str) -> Target:
    """What runs at `url`. Raises NotThere."""
    info = ask(url, key, "/server_info")
    return Target(url, key, info["served_model_name"], info["model_path"])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def started(flags: Sequence[str], key: str, port: int = 0) -> Iterator[Target]:
    """A server on loopback with these flags, on the embedded model unless they name another.

    Raises NotThere if it does not come up.
    """
    url = f"http://127.0.0.1:{port or free_port()}"
    command = [sys.executable, "-m", "radixserve.launch", "--port", url.rpartition(":")[2], *flags]
    log = BUILD / "server.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        _wait(process, url, log)
        yield found(url, key)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotThere(f"the server ended with status {process.returncode}: see {log}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/ready", timeout=5):
            return
        time.sleep(0.5)
    raise NotThere(f"the server was not ready within {START_SECONDS} seconds: see {log}")
