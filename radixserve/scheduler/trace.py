"""Records what the server was asked, to simulate with it later: lengths, times, hashed pages.

No text and no token ids. A page's hash says with whom it was shared, not what it said: the hashes
are keyed, and the key is made for the file and kept nowhere, so whoever has the file cannot try out
guesses. The namespace goes into them too, so nobody can by sending prompts of his own either.

The scheduler tells an `Observer`; `process.py` makes one. A thread hashes and writes, so that
neither a long request nor a slow disk holds up a step.
"""

import gzip
import hashlib
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from io import BufferedIOBase
from queue import Empty, Full, Queue
from typing import Protocol

import msgspec
from msgspec import Struct

from radixserve.messages import INT32_BYTES, Namespace
from radixserve.scheduler.request import Request

log = logging.getLogger("radixserve.scheduler")

VERSION = 1
STEP_SAMPLE = 16  # one step of so many is recorded
FLUSH_SECONDS = 1.0
CLOSE_SECONDS = 5.0  # that what waits may take at the end
BACKLOG = 4096  # records that may wait for the thread; what comes then is lost
BREATH = 64  # pages hashed before other threads get a turn, about 0.1 ms
REMEMBERED = 65_536  # namespaces, and tenants, that keep their number; the last ones seen
HASH_BITS = 53  # that a JSON number holds exactly


class Observer(Protocol):
    """Told what the scheduler did, as it happens. Returns at once and never raises."""

    def ended(self, request: Request) -> None:
        """A request finished or was aborted; its tokens are final."""

    def step(self, prefill_tokens: int, decode_rows: int, seconds: float) -> None:
        """A step was done: `decode_rows` of one new token each, and so many tokens of prompts."""


class Ended(Struct, frozen=True):
    """A line of the file: a request that finished or was aborted. Lengths are in tokens."""

    at: float  # when it arrived, in seconds since the recording began
    tenant: str  # "t1", "t2", ... as they come up
    ns: int  # 1, 2, ...: the same for requests of one namespace
    prompt: int
    output: int
    blocks: list[int]  # a hash for each full page, which stands for all that is before it as well
    cached: int


class Step(Struct, frozen=True):
    """A line of the file: prefill tokens, decode rows and seconds of a step."""

    step: tuple[int, int, float]


class _Request(Struct, frozen=True):
    """A request that ended, as it waits for the thread."""

    at: float
    namespace: Namespace
    tokens: bytes  # int32, prompt and output
    prompt: int
    cached: int


class TraceWriter:
    """The `Observer` that writes JSON lines, gzipped if the file is called so.

    Raises OSError if the file is there already or cannot be made. Later errors end the recording,
    not the server, and are logged. `clock` gives seconds, and gave `Request.arrived`.
    """

    def __init__(
        self, path: str, page_size: int, fingerprint: str, clock: Callable[[], float]
    ) -> None:
        self._path = path
        self._start = clock()
        self._blocks = _Blocks(page_size)
        self._tenants, self._namespaces = _Numbers(), _Numbers()
        self._steps = 0
        self._lost = 0
        self._queue: Queue[_Request | Step | None] = Queue(BACKLOG)
        self._file = _create(path)
        head = {"radixserve_trace": VERSION, "page_size": page_size, "model": fingerprint}
        self._write(head)
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def ended(self, request: Request) -> None:
        at = max(0.0, request.arrived - self._start)
        namespace, tokens = request.submit.namespace, bytes(request.tokens)
        self._put(_Request(at, namespace, tokens, request.prompt_len, request.reused))

    def step(self, prefill_tokens: int, decode_rows: int, seconds: float) -> None:
        self._steps += 1
        if self._steps % STEP_SAMPLE == 0:
            self._put(Step((prefill_tokens, decode_rows, round(seconds, 6))))

    def close(self) -> None:
        """Write what waits, and close the file. Nothing can be recorded any more."""
        if self._thread.is_alive():
            with suppress(Full):
                self._queue.put(None, timeout=CLOSE_SECONDS)
            self._thread.join(CLOSE_SECONDS)
        if self._lost:
            log.warning("%d records are missing in the trace %s", self._lost, self._path)

    def _put(self, record: _Request | Step) -> None:
        if not self._thread.is_alive():
            return
        try:
            self._queue.put_nowait(record)
        except Full:
            self._lost += 1
            if self._lost == 1:
                log.error("the trace %s is written too slowly; records are lost", self._path)

    # ---- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._record()
            self._file.close()
        except OSError as error:
            log.error("the trace %s ends early: %s", self._path, error)
            with suppress(OSError):
                self._file.close()

    def _record(self) -> None:
        """Write what is put into the queue until a None comes out."""
        flushed, record = time.monotonic(), None
        while True:
            try:
                record = self._queue.get(timeout=FLUSH_SECONDS)
            except Empty:
                self._file.flush()
                continue
            if record is None:
                return
            self._write(record if isinstance(record, Step) else self._hashed(record))
            if time.monotonic() - flushed >= FLUSH_SECONDS:
                self._file.flush()
                flushed = time.monotonic()

    def _hashed(self, request: _Request) -> Ended:
        return Ended(
            at=round(request.at, 6),
            tenant=f"t{self._tenants[request.namespace.tenant]}",
            ns=self._namespaces[request.namespace],
            prompt=request.prompt,
            output=len(request.tokens) // INT32_BYTES - request.prompt,
            blocks=self._blocks.of(request.namespace, request.tokens),
            cached=request.cached,
        )

    def _write(self, record: object) -> None:
        self._file.write(msgspec.json.encode(record) + b"\n")


class _Blocks:
    """Chained hashes of full pages under a key that is nowhere else."""

    def __init__(self, page_size: int) -> None:
        self._page_bytes = page_size * INT32_BYTES
        self._key = secrets.token_bytes(32)

    def of(self, namespace: Namespace, tokens: bytes) -> list[int]:
        """A number of `HASH_BITS` bits for each full page of `tokens`."""
        state = self._digest(msgspec.msgpack.encode(namespace))
        blocks = []
        for end in range(self._page_bytes, len(tokens) + 1, self._page_bytes):
            state = self._digest(state + tokens[end - self._page_bytes : end])
            blocks.append(int.from_bytes(state[:8]) >> (64 - HASH_BITS))
            if len(blocks) % BREATH == 0:
                time.sleep(0)
        return blocks

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, digest_size=32).digest()


class _Numbers:
    """1, 2, ... for what comes up; the same again for all but what was not seen for very long."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[object, int] = OrderedDict()
        self._last = 0

    def __getitem__(self, key: object) -> int:
        if key not in self._numbers:
            self._last += 1
            self._numbers[key] = self._last
            if len(self._numbers) > REMEMBERED:
                self._numbers.popitem(last=False)
        self._numbers.move_to_end(key)
        return self._numbers[key]


def _create(path: str) -> BufferedIOBase:
    if path.endswith(".gz"):
        return gzip.open(path, "xb", compresslevel=6)
    return open(path, "xb")
