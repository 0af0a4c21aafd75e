"""Life and death of a run: signals, killed processes, ports in use, what is left behind."""

import os
import signal
import socket
import tempfile
from pathlib import Path

import pytest

from radixserve.launch import sweep
from tests.process.conftest import Server, gone, start

pytestmark = pytest.mark.process


def sockets_of(server: Server) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"radixserve-{server.process.pid}-*"))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_and_leaves_nothing(own_server: Server, how: signal.Signals) -> None:
    children = own_server.children()
    assert set(children) == {"api", "scheduler", "worker"}
    assert sockets_of(own_server)
    assert own_server.stop(how) == 0
    assert gone(list(children.values()))
    assert not sockets_of(own_server)


@pytest.mark.parametrize("victim", ["worker", "scheduler", "api"])
def test_when_one_dies_all_end(own_server: Server, victim: str) -> None:
    children = own_server.children()
    os.kill(children[victim], signal.SIGKILL)
    assert own_server.ended(20) == 1
    assert gone(list(children.values()))
    assert not sockets_of(own_server)
    assert any("died (SIGKILL)" in line for line in own_server.log)


def test_an_open_stream_ends_with_an_error_when_the_worker_dies(own_server: Server) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 480, "ignore_eos": True, "stream": True}
    worker = own_server.children()["worker"]
    events: list[str] = []
    with own_server.http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if len(events) == 3 and not line:
                os.kill(worker, signal.SIGKILL)
            events += [line] if line else []
    assert "error" in events[-1] and "worker" in events[-1]
    assert own_server.ended(20) == 1


def test_children_do_not_outlive_a_killed_launcher(own_server: Server) -> None:
    children = list(own_server.children().values())
    left = sockets_of(own_server)
    own_server.stop(signal.SIGKILL)
    assert gone(children)
    sweep(Path(tempfile.gettempdir()))
    assert left and not any(folder.exists() for folder in left)


def test_a_port_in_use_is_said_quickly(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = start(checkpoint, "--port", str(port))
    assert server.ended(30) == 1
    said = "".join(server.log)
    assert f"port {port}" in said and "in use" in said


def test_a_wrong_model_path_is_said(tmp_path: Path) -> None:
    server = start(tmp_path)
    assert server.ended(30) == 1
    assert str(tmp_path) in "".join(server.log)
