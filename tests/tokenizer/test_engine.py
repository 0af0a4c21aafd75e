"""The scheduler's client: who gets which tokens, and exactly one abort where one is due."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from radixserve.messages import (
    Abort,
    Drain,
    Invalidate,
    Invalidated,
    Namespace,
    Pinned,
    Ready,
    Rejected,
    Sampling,
    Stats,
    Stop,
    Submit,
    TokenLogprobs,
    Tokens,
    ToScheduler,
    pack,
)
from radixserve.tokenizer.engine import Engine, EngineStopped, RequestRejected, Stream

NO_STATS = msgspec.convert(dict.fromkeys(Stats.__struct_fields__, 0) | {"tenants": {}}, Stats)
READY = Ready(64, 64, 400, 16, 100, "f")


class Record:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.first: list[tuple[float, int, int]] = []
        self.more: list[tuple[float, int]] = []
        self.ends: list[tuple[float, str]] = []
        self.count = 0

    def first_tokens(self, seconds: float, prompt: int, cached: int) -> None:
        self.first.append((seconds, prompt, cached))

    def more_tokens(self, seconds: float, count: int) -> None:
        self.more.append((seconds, count))

    def generated(self, count: int) -> None:
        self.count += count

    def finished(self, seconds: float, reason: str) -> None:
        self.ends.append((seconds, reason))


class Setting:
    """An engine whose messages and clock the test holds."""

    def __init__(self) -> None:
        self.sent: list[ToScheduler] = []
        self.now = 100.0
        self.record = Record()
        self.engine = Engine(self._send, self.record, clock=lambda: self.now)
        self.engine.deliver([READY])

    def _send(self, messages: Sequence[ToScheduler]) -> None:
        assert messages, "an empty list was sent"
        self.sent += messages

    def submit(self, *ids: str) -> Stream:
        return self.engine.submit([Submit(i, 0, pack([1, 2, 3]), Sampling(1), 9) for i in ids])

    def tokens(self, request_id: str, *ids: int, finish: str = "", cached: int = 0) -> None:
        self.engine.deliver([Tokens(request_id, pack(ids), cached, finish)])

    @property
    def aborts(self) -> list[str]:
        return [m.request_id for m in self.sent if isinstance(m, Abort)]


def read(stream: Stream) -> list[tuple[int, str]]:
    """All that is left in a stream."""

    async def collect() -> list[tuple[int, str]]:
        async with asyncio.timeout(5):
            return [(index, message.finish) async for index, message in stream]

    return asyncio.run(collect())


def test_a_group_ends_when_all_have() -> None:
    s = Setting()
    with s.submit("a", "b") as stream:
        s.tokens("b", 5)
        s.tokens("a", 6, finish="stop")
        s.tokens("unknown", 7)
        s.tokens("b", 8, finish="length")
        assert read(stream) == [(1, ""), (0, "stop"), (1, "length")]
    assert s.aborts == []
    assert [reason for _, reason in s.record.ends] == ["stop", "length"]


def test_leaving_aborts_what_has_not_ended_once() -> None:
    s = Setting()
    with s.submit("a", "b", "c") as stream:
        s.tokens("b", 6, finish="stop")
        stream.finish(2)
        stream.finish(2)
    stream.close()
    assert sorted(s.aborts) == ["a", "c"]
    s.tokens("a", 1)
    assert read(stream) == []
    assert [reason for _, reason in s.record.ends] == ["stop", "stop", "abort"]


def test_an_end_that_was_not_read_needs_no_abort() -> None:
    s = Setting()
    with s.submit("a"):
        s.tokens("a", 6, finish="stop")
    assert s.aborts == []


def test_what_comes_after_a_stop_string_is_not_shown() -> None:
    s = Setting()
    with s.submit("a", "b") as stream:
        s.tokens("a", 1)
        s.tokens("a", 2)
        stream.finish(0)
        s.tokens("b", 1, finish="stop")
        assert read(stream) == [(1, "stop")]
    assert s.aborts == ["a"]


def test_a_rejection_ends_the_group() -> None:
    s = Setting()
    with pytest.raises(RequestRejected, match="full") as caught, s.submit("a", "b") as stream:
        s.engine.deliver([Rejected("a", "queue_full", "the queue is full", 2.5)])
        read(stream)
    assert (caught.value.code, caught.value.retry_after) == ("queue_full", 2.5)
    assert s.aborts == ["b"]
    assert [reason for _, reason in s.record.ends] == ["queue_full", "abort"]


def test_stop_ends_all_and_needs_no_aborts() -> None:
    s = Setting()
    with s.submit("a") as stream:
        s.tokens("a", 1)
        s.engine.deliver([Stop("the worker died")])
        with pytest.raises(EngineStopped, match="worker died"):
            read(stream)
    assert s.aborts == []
    assert s.engine.trouble() == "the worker died"
    with pytest.raises(EngineStopped):
        s.submit("b")
    s.engine.stop("another")
    assert s.engine.trouble() == "the worker died"


def test_trouble() -> None:
    engine = Engine(lambda _: None, Record(), clock=lambda: now)
    now = 50.0
    assert "starting" in engine.trouble()
    engine.deliver([READY])
    assert engine.trouble() == ""
    now = 59.0
    engine.deliver([NO_STATS])
    now = 69.0
    assert engine.trouble() == ""
    now = 69.5
    assert "silent" in engine.trouble()
    engine.deliver([msgspec.structs.replace(NO_STATS, waiting_on_step=500.0)])
    assert "busy" in engine.trouble()


def test_times_are_those_of_delivery() -> None:
    s = Setting()
    with s.submit("a"):
        s.now = 101.0
        s.tokens("a", 1, cached=2)
        s.now = 101.5
        s.tokens("a", 1, 1)
        s.now = 102.0
        s.tokens("a", 1, finish="length")
    assert s.record.first == [(1.0, 3, 2)]
    assert s.record.more == [(0.5, 2), (0.5, 1)]
    assert s.record.ends == [(2.0, "length")]
    assert s.record.count == 4


def test_logprobs_travel_with_their_tokens() -> None:
    s = Setting()
    with s.submit("a") as stream:
        message = Tokens("a", pack([1]), 0, "stop", (TokenLogprobs(-1.0),))
        s.engine.deliver([message])
        assert asyncio.run(anext(stream)) == (0, message)  # type: ignore[arg-type]


def test_pins_are_kept_with_their_request() -> None:
    s = Setting()
    kept, refused = Pinned("b", 32), Pinned("b", 0, "over the budget")
    with s.submit("a", "b") as stream:
        s.engine.deliver([Pinned("unknown", 16), kept, refused])
        s.tokens("a", 1, finish="stop")
        s.tokens("b", 1, finish="stop")
        s.engine.deliver([Pinned("a", 16)])  # too late: it has ended
        read(stream)
        assert (stream.pins(0), stream.pins(1)) == ([], [kept, refused])


def order(name: str) -> Invalidate:
    return Invalidate(name, 0, Namespace(tenant="t"), pack([1, 2]))


def test_who_invalidates_waits_until_it_is_done() -> None:
    s = Setting()

    async def invalidate() -> Invalidated:
        task = asyncio.create_task(s.engine.invalidate(order("i")))
        await asyncio.sleep(0)
        assert s.sent == [order("i")] and not task.done()
        s.engine.deliver([Invalidated("unknown", 5), Invalidated("i", 7), Invalidated("i", 7)])
        return await task

    assert asyncio.run(invalidate()) == Invalidated("i", 7)
    s.engine.deliver([Invalidated("i", 7)])  # nobody waits any more


def test_an_invalidation_that_nobody_carries_out_ends_with_the_engine() -> None:
    s = Setting()

    async def invalidate() -> None:
        first, second = (asyncio.create_task(s.engine.invalidate(order(i))) for i in "ab")
        await asyncio.sleep(0)
        first.cancel()
        s.engine.stop("the worker died")
        await asyncio.gather(first, second, return_exceptions=True)
        assert first.cancelled()
        for late in (second, asyncio.create_task(s.engine.invalidate(order("c")))):
            with pytest.raises(EngineStopped, match="worker died"):
                await late

    asyncio.run(invalidate())


def test_an_abort_ends_streams_with_what_has_come() -> None:
    s = Setting()
    first = s.engine.submit([Submit(i, 0, pack([1]), Sampling(1), 9) for i in "ab"], ["mine", "x"])
    second = s.submit("c")
    s.tokens("a", 7, cached=5)
    assert s.engine.unfinished == 3
    assert s.engine.abort("nobody") == 0
    assert s.engine.abort("mine") == 2
    assert s.engine.abort("mine") == 0
    assert s.aborts == ["a", "b"]
    assert read(first) == [(0, ""), (0, "abort"), (1, "abort")]
    s.tokens("a", 8)  # was under way
    s.tokens("c", 8)
    assert s.engine.abort("c") == 1 and s.engine.unfinished == 0
    assert read(second) == [(0, ""), (0, "abort")]
    third, fourth = s.submit("d"), s.submit("e")
    assert s.engine.abort(None) == 2
    assert read(third) == read(fourth) == [(0, "abort")]
    assert s.aborts == ["a", "b", "c", "d", "e"]
    assert [reason for _, reason in s.record.ends] == ["abort"] * 5


def test_what_had_hit_is_told_with_an_abort() -> None:
    s = Setting()
    stream = s.submit("a")
    s.tokens("a", 7, cached=5)
    s.engine.abort("a")

    async def last() -> int:
        return [message.cached_tokens async for _, message in stream][-1]

    assert asyncio.run(last()) == 5


def test_a_drain_refuses_the_new_and_waits_for_readers() -> None:
    s = Setting()
    stream = s.submit("a")
    assert not s.engine.drained
    s.engine.deliver([Drain()])
    with pytest.raises(EngineStopped, match="takes no new requests") as refused:
        s.submit("b")
    assert refused.value.retry_after > 0
    assert "shutting down" in s.engine.trouble()
    assert [m.request_id for m in s.sent if isinstance(m, Submit)] == ["a"]
    s.tokens("a", 7, finish="stop")
    assert s.engine.unfinished == 0 and not s.engine.drained  # it was not read yet
    with stream:
        assert read(stream) == [(0, "stop")]
    assert s.engine.drained and not s.aborts


def test_a_drain_ends_what_nobody_needs() -> None:
    s = Setting()
    ahead = [Submit("ahead", 0, pack([1, 2, 3]), Sampling(1), 9)]
    with s.engine.submit(ahead, needed=False) as stream, s.submit("a") as other:
        s.engine.deliver([Drain()])
        assert s.aborts == ["ahead"]
        assert read(stream) == [(0, "abort")]
        s.tokens("a", 7, finish="stop")
        assert read(other) == [(0, "stop")]
    assert s.engine.drained and s.aborts == ["ahead"]


def test_nothing_has_drained_before_it_is_asked_to() -> None:
    assert not Setting().engine.drained
