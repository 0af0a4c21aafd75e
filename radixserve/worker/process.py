"""The worker process: `python -m radixserve.worker.process CONFIG_JSON`, started by the launcher.

Receives `RunStep`s, submits each as it arrives, and answers them in order with a `StepDone` as
their results get ready. Ends on `Stop`, on a bug (with a traceback and exit code 1), or when its
parent has died.
"""

import logging
import sys
import time
from collections import deque
from pathlib import Path
from typing import Protocol

from radixserve.channel import Inbox, Outbox
from radixserve.child import become_child, parent_alive
from radixserve.config import Config
from radixserve.messages import (
    Failed,
    RunStep,
    Started,
    StepDone,
    Stop,
    ToLaunch,
    ToScheduler,
    ToWorker,
)

POLL_SECONDS = 1.0  # how often an idle worker looks whether its parent is alive
RESULT_SECONDS = 0.001  # how often the inbox is left to look for a result
MOST_PENDING = 2  # steps: one that runs, and one for the device to go on with


log = logging.getLogger("radixserve.worker")


def main() -> None:
    config = Config.decode(sys.argv[1])
    become_child(config.launcher)
    logging.basicConfig(level=config.log_level.upper(), format="%(name)s: %(message)s")
    inbox: Inbox[ToWorker] = Inbox(config.run_dir, "worker", ToWorker)
    launch: Outbox[ToLaunch] = Outbox(config.run_dir, "launch")
    scheduler: Outbox[ToScheduler] = Outbox(config.run_dir, "scheduler")
    try:
        if not serve(config, inbox, launch, scheduler):
            sys.exit(1)
    finally:
        for socket in (launch, scheduler, inbox):
            socket.close()


def serve(
    config: Config,
    inbox: Inbox[ToWorker],
    launch: Outbox[ToLaunch],
    scheduler: Outbox[ToScheduler],
) -> bool:
    """Start up, then run steps until told to stop. False if the worker could not start."""
    try:
        begin = time.perf_counter()
        from radixserve.worker.runner import Runner  # torch: seconds, so timed and reported

        imported = time.perf_counter() - begin
        runner = Runner(config.worker, Path(config.worker.model_path))
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        # RuntimeError: torch is out of memory; ImportError: a backend's package is not installed
        log.debug("start-up failed", exc_info=True)
        launch.send([Failed(process="worker", reason=str(error))])
        return False
    startup = {"import torch": imported} | runner.startup
    scheduler.send([runner.ready])
    launch.send([Started(process="worker", startup=startup, detail=runner.detail)])
    run_steps(config, runner, inbox, scheduler)
    return True


class Result(Protocol):
    """A step that was submitted, as `pending.Pending`."""

    def ready(self) -> bool: ...

    def result(self) -> StepDone: ...


class Steps(Protocol):
    """What runs the steps, as `runner.Runner`."""

    def submit(self, step: RunStep) -> Result: ...


def run_steps(
    config: Config, runner: Steps, inbox: Inbox[ToWorker], scheduler: Outbox[ToScheduler]
) -> None:
    """Run what arrives until told to stop, or until the parent is gone.

    With MOST_PENDING steps pending, the next message could only be waited with, so the oldest
    result is waited for.
    """
    pending: deque[Result] = deque()

    def send(most: int) -> None:
        """Send the results that are there, and wait until at most `most` steps are pending."""
        while pending and (len(pending) > most or pending[0].ready()):
            scheduler.send([pending.popleft().result()])

    while parent_alive(config.launcher):
        for message in inbox.receive(RESULT_SECONDS if pending else POLL_SECONDS):
            match message:
                case RunStep():
                    send(MOST_PENDING - 1)
                    pending.append(runner.submit(message))
                    send(MOST_PENDING)
                case Stop():
                    return
        send(MOST_PENDING - 1)


if __name__ == "__main__":
    main()
