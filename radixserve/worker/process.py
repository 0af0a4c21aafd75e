"""The worker process: `python -m radixserve.worker.process CONFIG_JSON`, started by the launcher.

Receives `RunStep`s, runs them in order, answers each with a `StepDone`. Ends on `Stop`, on a bug
(with a traceback and exit code 1), or when its parent has died.
"""

import logging
import sys
import time
from pathlib import Path

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
    while parent_alive(config.launcher):
        for message in inbox.receive(POLL_SECONDS):
            match message:
                case RunStep():
                    done: StepDone = runner.run(message)
                    scheduler.send([done])
                case Stop():
                    return True
    return True


if __name__ == "__main__":
    main()
