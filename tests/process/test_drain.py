"""SIGTERM while requests run: they are answered first, within the time that is given."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from radixserve.launch import notify
from tests.process.conftest import Server, eventually, gone, start

pytestmark = pytest.mark.process

TOKENS = 300
PROMPTS = ["Once upon a time", "The quick brown fox", "import json", "a lighthouse keeper"]
LONG = {"prompt": PROMPTS, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "x", "max_tokens": 1}


@contextmanager
def running(checkpoint: Path, *flags: str) -> Iterator[Server]:
    """A server that runs one request at a time, so that others wait; it may take its time."""
    server = start(checkpoint, "--max-running-requests", "1", "--drain-seconds", "600", *flags)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.ended(30)


def events(answer: httpx.Response) -> Iterator[str]:
    return (line.removeprefix("data: ") for line in answer.iter_lines() if line)


def finishes(told: list[str]) -> int:
    return sum('"finish_reason":"length"' in event for event in told)


def test_what_was_taken_is_answered_and_nothing_more(checkpoint: Path) -> None:
    with running(checkpoint) as server, httpx.Client(base_url=server.url, timeout=60) as other:
        body = LONG | {"stream_options": {"include_usage": True}}
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            told = events(answer)
            first = next(told)
            server.process.send_signal(signal.SIGTERM)
            assert eventually(lambda: other.get("/ready").status_code == 503)
            refused = [other.post("/v1/completions", json=SHORT), other.get("/health")]
            assert [r.status_code for r in refused] == [503, 503]
            assert all(int(r.headers["retry-after"]) > 0 for r in refused)
            assert "shutting down" in refused[0].json()["error"]["message"]
            assert other.get("/v1/models").status_code == 200
            rest = list(told)
        assert (rest[-1], finishes(rest)) == ("[DONE]", len(PROMPTS))
        assert f'"completion_tokens":{TOKENS * len(PROMPTS)}' in rest[-2]
        assert '"error"' not in first
        assert server.ended(60) == 0


def test_a_signal_to_all_processes_is_as_good(checkpoint: Path) -> None:
    with running(checkpoint) as server:
        with server.http.stream("POST", "/v1/completions", json=LONG) as answer:
            told = events(answer)
            next(told)
            for pid in (*server.children().values(), server.process.pid):
                os.kill(pid, signal.SIGTERM)
            rest = list(told)
        assert (rest[-1], finishes(rest)) == ("[DONE]", len(PROMPTS))
        assert server.ended(60) == 0


def test_without_requests_it_ends_at_once(checkpoint: Path) -> None:
    with running(checkpoint) as server:
        assert server.post("/v1/completions", SHORT).status_code == 200
        assert server.stop() == 0


@pytest.mark.parametrize("seconds", ["0", "0.3"])
def test_after_the_time_streams_end_with_an_error(checkpoint: Path, seconds: str) -> None:
    with running(checkpoint, "--drain-seconds", seconds) as server:
        with server.http.stream("POST", "/v1/completions", json=LONG) as answer:
            told = events(answer)
            next(told)
            server.process.send_signal(signal.SIGTERM)
            rest = list(told)
        assert '"error"' in rest[-1] and "shutting down" in rest[-1]
        assert finishes(rest) < len(PROMPTS)
        assert server.ended(60) == 0
        assert any("still run" in line for line in server.log) == (seconds != "0")


def test_a_second_signal_ends_all_at_once(checkpoint: Path) -> None:
    with running(checkpoint) as server:
        with server.http.stream("POST", "/v1/completions", json=LONG) as answer:
            told = events(answer)
            next(told)
            server.process.send_signal(signal.SIGTERM)
            with httpx.Client(base_url=server.url) as other:
                assert eventually(lambda: other.get("/ready").status_code == 503)
            server.process.send_signal(signal.SIGINT)
            with pytest.raises(httpx.RemoteProtocolError):
                list(told)
        assert server.ended(60) == 0


def test_a_death_while_it_drains_is_a_failure(checkpoint: Path) -> None:
    with running(checkpoint) as server:
        worker = server.children()["worker"]
        with server.http.stream("POST", "/v1/completions", json=LONG) as answer:
            told = events(answer)
            next(told)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            os.kill(worker, signal.SIGKILL)
            rest = list(told)
        assert '"error"' in rest[-1] and "worker" in rest[-1]
        assert server.ended(60) == 1


def test_systemd_hears_of_the_start_and_the_end(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with running(checkpoint) as server:
            assert systemd.recv(100) == b"READY=1"
            server.process.send_signal(signal.SIGTERM)
            assert systemd.recv(100) == b"STOPPING=1"
            assert server.ended(60) == 0


def test_a_socket_without_a_file_and_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"radixserve-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}")
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        notify("READY=1")
        assert systemd.recv(100) == b"READY=1"
    notify("READY=1")  # nobody listens any more: only a warning
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")


def test_a_signal_before_it_is_ready_ends_it(checkpoint: Path) -> None:
    command = [sys.executable, "-m", "radixserve.launch", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--model-path", str(checkpoint)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    starting = Server(process)  # type: ignore[arg-type]
    try:
        assert eventually(lambda: len(starting.children()) == 3)
        children = [*starting.children().values()]
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=20)
        assert process.returncode == 0 and gone(children)
        assert not said  # it was never ready
    finally:
        process.kill()
        process.communicate()
