"""The launcher: gets the model, starts the three processes, and stops all of them together.

    python -m radixserve.launch [flags]

It waits until all are ready, prints one line with the URL, and then watches. When a process dies,
the others are told to stop, and are ended if they do not; nobody outlives it, and the folder with
the sockets goes with it. After SIGINT or SIGTERM new requests are refused, and those that were
taken have `--drain-seconds` to be answered in. A second signal ends all at once.
"""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from msgspec.structs import replace

from radixserve import __version__
from radixserve.cache import POLICIES
from radixserve.channel import Inbox, Outbox
from radixserve.config import Config, cache_home, notify_socket, parse, worker_environment
from radixserve.messages import Drain, Failed, Started, Stop, ToLaunch
from radixserve.models.hub import EMBEDDED_SAMPLING, resolve, served_name
from radixserve.parsing.formats import FORMATS
from radixserve.scheduler.order import ORDERS

log = logging.getLogger("radixserve")

CHILDREN = {  # in the order in which they are stopped
    "tokenizer": ("tokenizer0", "radixserve.api.process"),
    "scheduler": ("scheduler", "radixserve.scheduler.process"),
    "worker": ("worker", "radixserve.worker.process"),
}
PREFIX = "radixserve-"
WATCH = 0.1  # seconds between two looks at the children
GRACE = 5.0  # seconds in which a child that was told to stop may end by itself
PARSERS = ("auto", "none", *FORMATS)
FLAGS = {
    "schedule_policy": tuple(ORDERS),
    "radix_eviction_policy": tuple(POLICIES),
    "tool_call_parser": PARSERS,
    "reasoning_parser": PARSERS,
}


class Supervisor:
    """The children of one run."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.signals = 0  # to stop, that came
        self._inbox: Inbox[ToLaunch] = Inbox(config.run_dir, "launch", ToLaunch)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._started: set[str] = set()
        self._began = time.monotonic()

    def run(self) -> int:
        """Start, watch, drain, stop. The exit code: 0 after a signal, 1 if something went wrong."""
        reason = ""
        try:
            for name, (_, module) in CHILDREN.items():
                command = [sys.executable, "-m", module, self.config.encode()]
                env = worker_environment() if name == "worker" else None
                self._children[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env)
            reason = self._wait() or self._watch() or self._drain()
        finally:
            self._stop(reason)
            self._inbox.close()
        if reason:
            log.error("%s", reason)
        return 1 if reason else 0

    def ask_to_stop(self, signum: int, frame: FrameType | None) -> None:
        """Signal handler: drain and stop; asked a second time, end the children at once."""
        self.signals += 1
        if self.signals > 1:
            for child in self._children.values():
                child.kill()

    def _wait(self) -> str:
        """Until all are ready. Returns why that will not be, or "" ."""
        url = ""
        while len(self._started) < len(CHILDREN) and not self.signals:
            for message in self._inbox.receive(WATCH):
                match message:
                    case Failed(process, reason):
                        return f"the {process} cannot start: {reason}"
                    case Started(process, startup, detail):
                        self._started.add(process)
                        url = detail if process == "tokenizer" else url
                        parts = ", ".join(f"{part} {s:.2f} s" for part, s in startup.items())
                        log.info("%s ready: %s", process, "; ".join(filter(None, (detail, parts))))
            if dead := self._dead():
                return self._last_words() or dead
        if not self.signals:
            log.info("ready after %.1f s", time.monotonic() - self._began)
            sys.stdout.write(f"radixserve {__version__} at {url}\n")
            sys.stdout.flush()
            notify("READY=1")
        return ""

    def _watch(self) -> str:
        while not self.signals:
            if dead := self._dead():
                return dead
            time.sleep(WATCH)
        return ""

    def _drain(self) -> str:
        """Until the tokenizer has answered what it had taken, the time is over, or a new signal."""
        notify("STOPPING=1")
        seconds = self.config.server.drain_seconds
        if not seconds or len(self._started) < len(CHILDREN):
            return ""
        deadline = time.monotonic() + seconds
        outbox: Outbox[Drain] = Outbox(self.config.run_dir, CHILDREN["tokenizer"][0])
        outbox.send([Drain()])
        try:
            while self._children["tokenizer"].poll() is None and self.signals < 2:
                if dead := self._dead(draining=True):
                    return dead
                if time.monotonic() > deadline:
                    log.warning("requests still run after %g s: they end now", seconds)
                    break
                time.sleep(WATCH)
        finally:
            outbox.close(linger=0)
        return self._dead(draining=True)

    def _dead(self, draining: bool = False) -> str:
        """Which child died that was not to, and how. A tokenizer that has drained exits with 0."""
        for name, child in self._children.items():
            code = child.poll()
            if code is None or (draining and code == 0):
                continue
            if self.signals <= draining:
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                return f"the {name} process died ({how})"
        return ""

    def _last_words(self) -> str:
        """The reason a dead child gave, which may arrive just after its death is seen."""
        for message in self._inbox.receive(WATCH):
            if isinstance(message, Failed):
                return f"the {message.process} cannot start: {message.reason}"
        return ""

    def _stop(self, reason: str) -> None:
        deadline = time.monotonic() + GRACE
        for name, child in self._children.items():
            if child.poll() is None:
                outbox: Outbox[Stop] = Outbox(self.config.run_dir, CHILDREN[name][0])
                outbox.send([Stop(reason)])
                if name not in self._started:
                    child.kill()  # it reads no messages yet
                self._end(name, child, deadline)
                outbox.close(linger=0)

    def _end(self, name: str, child: subprocess.Popen[bytes], deadline: float) -> None:
        for end in (child.kill, None):
            try:
                child.wait(max(deadline - time.monotonic(), 0.5))
                return
            except subprocess.TimeoutExpired:
                log.warning("the %s does not stop", name)
            if end is not None:
                end()


def notify(state: str) -> None:
    """Tell systemd, if it started this and wants to know (sd_notify): READY=1 or STOPPING=1."""
    if address := notify_socket():
        abstract = address.startswith("@")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            try:
                out.sendto(state.encode(), "\0" + address[1:] if abstract else address)
            except OSError as error:
                log.warning("cannot tell systemd %s: %s", state, error.strerror)


def sweep(folder: Path) -> None:
    """Remove socket folders whose launcher was killed and could not."""
    for left in folder.glob(f"{PREFIX}*-*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(left, ignore_errors=True)


def prepare(config: Config) -> Config:
    """The settings with the model's folder in place of its name. Raises with a sentence."""
    name = config.server.served_model_name or served_name(config.worker.model_path)
    sampling = config.server.sampling_defaults
    if sampling == "model" and not config.worker.model_path:
        sampling = EMBEDDED_SAMPLING
    folder = resolve(
        config.worker.model_path,
        cache_home(),
        log.info,
        weights=config.worker.load_format != "dummy",
        model_impl=config.worker.model_impl,
    )
    return replace(
        config,
        server=replace(config.server, served_model_name=name, sampling_defaults=sampling),
        worker=replace(config.worker, model_path=str(folder)),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The console command. Returns the exit code."""
    config = parse(sys.argv[1:] if argv is None else argv, FLAGS)
    logging.basicConfig(level=config.log_level.upper(), format="%(name)s: %(message)s")
    try:
        config = prepare(config)
    except (RuntimeError, ValueError, OSError) as error:
        log.error("%s", error)
        return 1
    sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as run_dir:
        supervisor = Supervisor(replace(config, run_dir=run_dir, launcher=os.getpid()))
        signal.signal(signal.SIGINT, supervisor.ask_to_stop)
        signal.signal(signal.SIGTERM, supervisor.ask_to_stop)
        return supervisor.run()


if __name__ == "__main__":
    raise SystemExit(main())
