"""The tokenizer process: `python -m radixserve.api.process CONFIG_JSON`, started by the launcher.

Binds the HTTP port first, so that a port in use is known at once; serves at once (503 until the
scheduler says `Ready`) and reports `Started` then. After `Drain` it refuses new requests and ends
when the others are answered; on `Stop` it ends at once, open streams with an error.
"""

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import Iterator

import uvicorn

from radixserve.api.app import create_app
from radixserve.api.front import Front
from radixserve.api.http import Http
from radixserve.api.metrics import Metrics
from radixserve.channel import AsyncInbox, Outbox
from radixserve.child import become_child, parent_alive
from radixserve.config import Config, ServerConfig
from radixserve.messages import Failed, Started, ToLaunch, ToScheduler, ToTokenizer
from radixserve.tokenizer.engine import Engine

log = logging.getLogger(__name__)

NAME = "tokenizer"
CLOSE_SECONDS = 5  # that open responses have to end in after `Stop`


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: the launcher and `Stop` end this process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(server: ServerConfig) -> socket.socket:
    """The listening socket. OSError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    listener = socket.create_server((server.host, server.port), family=family, backlog=2048)
    # Connections inherit it. asyncio sets it only where a socket names its protocol, which ours do
    # not; without it the second part of an answer waits 40 ms for the first one's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Process:
    """The loop that joins the inbox, the engine client and the HTTP server."""

    def __init__(self, config: Config, launch: "Outbox[ToLaunch]", began: float) -> None:
        self._launch = launch
        self._launcher = config.launcher
        self._began = began
        self._listener = bind(config.server)
        self._scheduler: Outbox[ToScheduler] = Outbox(config.run_dir, "scheduler")
        self._inbox: AsyncInbox[ToTokenizer] = AsyncInbox(config.run_dir, f"{NAME}0", ToTokenizer)
        metrics = Metrics()
        self._engine = Engine(self._scheduler.send, metrics)
        self._front = Front(config, self._engine, metrics)
        self._server = _Server(
            uvicorn.Config(
                create_app(self._front),
                http=Http,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=CLOSE_SECONDS,
            )
        )
        self._loaded = time.monotonic()
        self._reported = False

    async def run(self) -> None:
        """Until `Stop`, the last answer after `Drain`, or the end of the parent."""
        receiver = asyncio.create_task(self._receive())
        watcher = asyncio.create_task(self._watch())
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            for task in (receiver, watcher):
                task.cancel()
            await asyncio.gather(receiver, watcher, return_exceptions=True)
            self._front.close()
            self._scheduler.close()
            self._inbox.close()

    async def _receive(self) -> None:
        try:
            while not self._engine.stopped:
                self._engine.deliver(await self._inbox.receive())
                if self._engine.ready and not self._reported:
                    self._report_ready()
        except Exception:
            log.exception("the inbox failed")
            self._engine.stop("the server failed to read a message")

    def _report_ready(self) -> None:
        self._reported = True
        startup = {
            "load": self._loaded - self._began,
            "wait for the engine": max(0.0, time.monotonic() - self._loaded),
        }
        self._launch.send([Started(NAME, startup, url(self._listener))])

    async def _watch(self) -> None:
        """Ends the HTTP server when the engine has stopped or drained, or the parent is gone."""
        while not self._engine.stopped:
            await asyncio.sleep(0.1)
            if not parent_alive(self._launcher):
                self._engine.stop("the launcher is gone")
            elif self._engine.drained:
                self._engine.stop("")
        self._server.should_exit = True


def _reason(error: Exception, config: Config) -> str:
    """Why the process cannot start, as a sentence for the person who started the server."""
    if isinstance(error, OSError) and error.filename is None and error.errno is not None:
        return f"cannot listen on {config.server.host} port {config.server.port}: {error.strerror}"
    return f"the tokenizer cannot start: {error}"


def main() -> int:
    began = time.monotonic()
    config = Config.decode(sys.argv[1])
    become_child(config.launcher)
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    launch: Outbox[ToLaunch] = Outbox(config.run_dir, "launch")
    try:
        asyncio.run(_serve(config, launch, began))
    except Exception as error:
        log.exception("the tokenizer process failed")
        launch.send([Failed(NAME, _reason(error, config))])
        return 1
    finally:
        launch.close()
    return 0


async def _serve(config: Config, launch: "Outbox[ToLaunch]", began: float) -> None:
    await _Process(config, launch, began).run()


if __name__ == "__main__":
    sys.exit(main())
