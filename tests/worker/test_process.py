"""The worker process over real sockets: ready, steps, stop; a refusal; a dead parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from radixserve.channel import Inbox, Outbox
from radixserve.config import Config, WorkerConfig
from radixserve.messages import (
    Failed,
    RunStep,
    Started,
    StepDone,
    Stop,
    ToLaunch,
    ToScheduler,
    WorkerReady,
)
from tests.worker.requests import Request

SECONDS = 60


def receive(inbox, count=1):
    """The next `count` messages."""
    messages = []
    deadline = time.monotonic() + SECONDS
    while len(messages) < count and time.monotonic() < deadline:
        messages += inbox.receive(0.5)
    assert len(messages) == count, messages
    return messages


def command(run_dir: Path, model: Path) -> list[str]:
    config = Config(
        worker=WorkerConfig(
            model_path=str(model), device="cpu", max_total_tokens=1024, page_size=8, num_threads=1
        ),
        run_dir=str(run_dir),
        launcher=os.getpid(),
    )
    return [sys.executable, "-m", "radixserve.worker.process", config.encode()]


@pytest.fixture
def inboxes(tmp_path):
    scheduler = Inbox(str(tmp_path), "scheduler", ToScheduler)
    launch = Inbox(str(tmp_path), "launch", ToLaunch)
    yield scheduler, launch
    scheduler.close()
    launch.close()


def test_ready_steps_stop(tmp_path, checkpoint, inboxes):
    scheduler, launch = inboxes
    worker = Outbox(str(tmp_path), "worker")
    process = subprocess.Popen(command(tmp_path, checkpoint))
    try:
        (ready,) = receive(scheduler)
        (started,) = receive(launch)
        assert isinstance(ready, WorkerReady) and isinstance(started, Started)
        assert (ready.num_pages, ready.page_size, ready.vocab_size) == (128, 8, 512)
        parts = ["import torch", "load weights", "allocate pool", "capture graphs", "warm-up"]
        assert list(started.startup) == parts
        assert "1024 tokens" in started.detail

        process.send_signal(signal.SIGINT)  # Ctrl-C is the launcher's
        request = Request(0, range(20, 30), [4, 9])
        steps = [
            RunStep(step=1, rows=(request.prefill(),), admits=(request.admit,)),
            RunStep(step=2, rows=(request.decode(),)),
            RunStep(step=3, rows=(), frees=(0,)),
        ]
        worker.send(steps)
        done = receive(scheduler, 3)
        assert all(isinstance(message, StepDone) for message in done)
        assert [message.step for message in done] == [1, 2, 3]
        assert [len(message.tokens) for message in done] == [4, 4, 0]
        worker.send([Stop()])
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        worker.close()


def test_what_cannot_start_says_why(tmp_path, inboxes):
    _, launch = inboxes
    missing = tmp_path / "no-such-model"
    process = subprocess.Popen(command(tmp_path, missing))
    try:
        (failed,) = receive(launch)
        assert isinstance(failed, Failed) and failed.process == "worker"
        assert str(missing) in failed.reason
        assert process.wait(SECONDS) == 1
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="the fast way is Linux's PDEATHSIG")
def test_dies_with_its_parent(tmp_path, checkpoint, inboxes):
    scheduler, _ = inboxes
    script = (
        "import os, subprocess, sys, time\n"
        "command = [a.replace('LAUNCHER', str(os.getpid())) for a in sys.argv[1:]]\n"
        "print(subprocess.Popen(command).pid, flush=True)\n"
        "time.sleep(120)"
    )
    mine = f'"launcher":{os.getpid()}'
    worker_command = [a.replace(mine, '"launcher":LAUNCHER') for a in command(tmp_path, checkpoint)]
    parent = subprocess.Popen(
        [sys.executable, "-c", script, *worker_command],
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        worker = int(parent.stdout.readline())
        receive(scheduler)
        parent.kill()
    deadline = time.monotonic() + 10
    while alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(worker)


def test_does_not_start_for_a_parent_that_is_gone(tmp_path, checkpoint):
    mine = f'"launcher":{os.getpid()}'
    gone = [a.replace(mine, '"launcher":1') for a in command(tmp_path, checkpoint)]
    assert subprocess.run(gone, timeout=SECONDS, check=False).returncode == 1


def alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
