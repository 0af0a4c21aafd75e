"""The sockets between the processes; the only file that imports zmq.

Each process binds one inbox (PULL) in the run's folder and has outboxes (PUSH) to others'. Sending
never blocks and never drops: queues are unbounded, what bounds them is the work admitted upstream.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq
import zmq.asyncio

M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()


def address(run_dir: str, name: str) -> str:
    """The ipc address of an inbox, e.g. name "scheduler" or "tokenizer0"."""
    return f"ipc://{Path(run_dir) / name}.sock"


class Inbox(Generic[M]):
    """Receives lists of messages of the union `kind`. Malformed bytes raise msgspec.DecodeError."""

    def __init__(self, run_dir: str, name: str, kind: Any) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.set_hwm(0)
        self._socket.bind(address(run_dir, name))
        self._decoder = msgspec.msgpack.Decoder(list[kind])

    def receive(self, timeout: float | None = None) -> list[M]:
        """All that has arrived; waits up to `timeout` seconds (None: for ever) for the first."""
        if not self._socket.poll(None if timeout is None else int(timeout * 1000)):
            return []
        messages: list[M] = []
        while True:
            try:
                messages += self._decoder.decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return messages

    def close(self) -> None:
        self._context.destroy(linger=0)


class AsyncInbox(Generic[M]):
    """The same for asyncio."""

    def __init__(self, run_dir: str, name: str, kind: Any) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.set_hwm(0)
        self._socket.bind(address(run_dir, name))
        self._decoder = msgspec.msgpack.Decoder(list[kind])

    async def receive(self) -> list[M]:
        """The next list of messages."""
        messages: list[M] = self._decoder.decode(await self._socket.recv())
        return messages

    def close(self) -> None:
        self._context.destroy(linger=0)


class Outbox(Generic[M]):
    """Sends messages to the inbox `name`, in order. May be made before that inbox exists."""

    def __init__(self, run_dir: str, name: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.connect(address(run_dir, name))

    def send(self, messages: Sequence[M]) -> None:
        if messages:
            self._socket.send(_encoder.encode(messages))

    def close(self, linger: float = 0.5) -> None:
        """Close; waits up to `linger` seconds for what was sent to leave."""
        self._context.destroy(linger=int(linger * 1000))
