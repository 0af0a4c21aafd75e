"""The tokenizer process itself, between a scheduler and a launcher that the test plays."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from radixserve.api.process import bind
from radixserve.channel import Inbox, Outbox
from radixserve.config import Config, ServerConfig, WorkerConfig
from radixserve.messages import (
    Abort,
    Failed,
    Started,
    Stop,
    Submit,
    Tokens,
    ToLaunch,
    ToScheduler,
    ToTokenizer,
    pack,
)
from tests.api.fakes import NO_STATS, READY

SECONDS = 30.0


class Run:
    """The ends of the sockets, and the process."""

    def __init__(self, run_dir: str, folder: Path, port: int = 0) -> None:
        self.scheduler: Inbox[ToScheduler] = Inbox(run_dir, "scheduler", ToScheduler)
        self.launch: Inbox[ToLaunch] = Inbox(run_dir, "launch", ToLaunch)
        self.tokenizer: Outbox[ToTokenizer] = Outbox(run_dir, "tokenizer0")
        config = Config(
            server=ServerConfig(port=port),
            worker=WorkerConfig(model_path=str(folder)),
            log_level="warning",
            run_dir=run_dir,
            launcher=os.getpid(),
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "radixserve.api.process", config.encode()],
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self) -> str:
        """Bring it up; returns the URL."""
        self.tokenizer.send([READY, NO_STATS])
        (started,) = self.launch.receive(SECONDS)
        assert isinstance(started, Started) and started.process == "tokenizer"
        assert started.startup["load"] > 0
        return started.detail

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        for end in (self.scheduler, self.launch):
            end.close()
        self.tokenizer.close(0)


@pytest.fixture
def run_dir() -> Iterator[str]:
    with TemporaryDirectory(prefix="rs") as name:
        yield name


def stream_lines(url: str) -> list[str]:
    """All lines of one streamed answer."""
    with httpx.Client(base_url=url, timeout=SECONDS) as client:
        fields = {"prompt": "x", "stream": True}
        with client.stream("POST", "/v1/completions", json=fields) as response:
            return list(response.iter_lines())


def test_a_request_through_the_process_and_its_end(run_dir: str, folder: Path) -> None:
    run = Run(run_dir, folder)
    try:
        url = run.start()
        with ThreadPoolExecutor(1) as pool:
            lines = pool.submit(stream_lines, url)
            (submit,) = run.scheduler.receive(SECONDS)
            assert isinstance(submit, Submit) and submit.origin == 0
            run.tokenizer.send([Tokens(submit.request_id, pack([70, 71]), 0)])
            run.tokenizer.send([Stop("the worker died")])
            first, *_, last = [line for line in lines.result(SECONDS) if line]
        assert "text_completion" in first and "the worker died" in last
        assert run.process.wait(SECONDS) == 0
        assert run.scheduler.receive(0.1) == []
    finally:
        run.close()


def test_a_client_that_leaves(run_dir: str, folder: Path) -> None:
    run = Run(run_dir, folder)
    try:
        url = run.start()
        with httpx.Client(base_url=url) as client, pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json={"prompt": "x"}, timeout=0.5)
        submit, abort = [*run.scheduler.receive(SECONDS), *run.scheduler.receive(1)][:2]
        assert isinstance(submit, Submit)
        assert abort == Abort(submit.request_id)
        run.process.terminate()  # a signal to all processes of a run is for the launcher
        assert httpx.get(f"{url}/health").status_code == 200
        run.tokenizer.send([Stop()])
        assert run.process.wait(SECONDS) == 0
    finally:
        run.close()


def test_503_until_ready(run_dir: str, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = Run(run_dir, folder, port)
    try:
        transport = httpx.HTTPTransport(retries=8)  # waits 0.5, 1, 2, ... s between
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=transport) as client:
            assert client.get("/health").status_code == 503
            assert run.start() == f"http://127.0.0.1:{port}"
            assert client.get("/health").status_code == 200
    finally:
        run.close()


def test_a_port_in_use_is_told(run_dir: str, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = Run(run_dir, folder, port)
        try:
            (failed,) = run.launch.receive(SECONDS)
            assert isinstance(failed, Failed)
            assert (
                f"cannot listen on 127.0.0.1 port {port}: Address already in use" in failed.reason
            )
            assert run.process.wait(SECONDS) == 1
        finally:
            run.close()


def test_a_folder_without_a_tokenizer_is_told(run_dir: str, tmp_path: Path) -> None:
    run = Run(run_dir, tmp_path)
    try:
        (failed,) = run.launch.receive(SECONDS)
        assert isinstance(failed, Failed) and "has no tokenizer.json" in failed.reason
        assert run.process.wait(SECONDS) == 1
    finally:
        run.close()


def test_connections_do_not_wait_for_acknowledgements():
    with bind(ServerConfig(port=0)) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        accepted, _ = listener.accept()
        with client, accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
