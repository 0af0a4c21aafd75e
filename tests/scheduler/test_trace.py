"""The trace: what a reader learns from it, what nobody can, and what it costs when it fails."""

import gzip
import json
import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.config import SchedulerConfig
from radixserve.messages import Namespace, Sampling, Submit, pack
from radixserve.scheduler import trace
from radixserve.scheduler.request import Request
from radixserve.scheduler.trace import TraceWriter
from tests.scheduler.fake import Engine, ready

PAGE = 4
PROMPT = [1, 2, 3, 4, 0, 1, 2, 3, 4, 4]
HOME = Namespace(tenant="acme", salt="s3cret")


def request(
    prompt: Sequence[int],
    answer: Sequence[int] = (),
    namespace: Namespace = HOME,
    arrived: float = 100.0,
    cached: int = 0,
) -> Request:
    """A request that has ended."""
    submit = Submit("name-of-request", 0, pack(prompt), Sampling(seed=0), 9, namespace)
    made = Request(submit, 0, 9, arrived)
    if cached:
        made.reuse(cached)
    made.tokens += pack(answer)
    return made


def writer(path: Path) -> TraceWriter:
    """A recording that began at second 100."""
    return TraceWriter(str(path), PAGE, "weights", lambda: 100.0)


def record(path: Path, *requests: Request) -> list[dict[str, Any]]:
    """The lines of a file about `requests`."""
    recorder = writer(path)
    for each in requests:
        recorder.ended(each)
    recorder.close()
    return read(path)[1:]


def read(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in text.splitlines()]


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    same = [x == y for x, y in zip(a, b, strict=False)]
    return same.index(False) if False in same else len(same)


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_file_by_hand(tmp_path: Path, name: str) -> None:
    recorder = writer(tmp_path / name)
    recorder.ended(request(PROMPT, [1, 2], arrived=101.5, cached=8))
    for number in range(1, 33):
        recorder.step(number, 2 * number, number / 8)
    recorder.ended(request(PROMPT, arrived=99.0, namespace=Namespace(tenant="b")))
    recorder.close()
    head, first, *steps, second = read(tmp_path / name)
    assert head == {"radixserve_trace": 1, "page_size": PAGE, "model": "weights"}
    blocks = first.pop("blocks")
    assert len(set(blocks)) == 3 and all(0 <= block < 2**53 for block in blocks)
    assert first == dict(at=1.5, tenant="t1", ns=1, prompt=10, output=2, cached=8)
    assert steps == [{"step": [16, 32, 2.0]}, {"step": [32, 64, 4.0]}]
    assert len(second.pop("blocks")) == 2
    assert second == dict(at=0.0, tenant="t2", ns=2, prompt=10, output=0, cached=0)


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), min_size=1, max_size=6),
    output=st.integers(0, 9),
)
def test_lengths_and_shared_pages_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]], output: int
) -> None:
    """As many blocks agree as full pages do, for every pair of requests."""
    path = tmp_path_factory.mktemp("trace") / "t"
    texts = [[*prompt, *([1] * output)] for prompt in prompts]
    lines = record(path, *(request(prompt, [1] * output) for prompt in prompts))
    for text, prompt, line in zip(texts, prompts, lines, strict=True):
        assert (line["prompt"], line["output"]) == (len(prompt), output)
        assert len(line["blocks"]) == len(text) // PAGE
    for a, one in zip(texts, lines, strict=True):
        for b, other in zip(texts, lines, strict=True):
            assert shared(one["blocks"], other["blocks"]) == shared(a, b) // PAGE
            assert (one["blocks"] == other["blocks"]) == (
                a[: len(a) // PAGE * PAGE] == b[: len(b) // PAGE * PAGE]
            )


def test_a_block_stands_for_all_that_is_before_it(tmp_path: Path) -> None:
    """The same page behind another one is another block."""
    one, other = record(tmp_path / "t", request([1] * 4 + [2] * 4), request([3] * 4 + [2] * 4))
    assert not set(one["blocks"]) & set(other["blocks"])


def test_the_same_prompt_is_something_else_in_another_file(tmp_path: Path) -> None:
    one, other = (record(tmp_path / name, request(PROMPT))[0]["blocks"] for name in "ab")
    assert len(one) == len(other) == 2 and not set(one) & set(other)


def test_the_same_prompt_is_something_else_in_another_namespace(tmp_path: Path) -> None:
    """Who can read the file cannot find the prompts of others by sending guesses of them."""
    spaces = [HOME, Namespace(tenant="acme"), Namespace(tenant="mallory"), Namespace("a", 1)]
    lines = record(tmp_path / "t", *(request(PROMPT, namespace=space) for space in spaces * 2))
    assert [line["ns"] for line in lines] == [1, 2, 3, 4] * 2
    assert [line["tenant"] for line in lines] == ["t1", "t1", "t2", "t3"] * 2
    assert len({block for line in lines for block in line["blocks"]}) == 2 * len(spaces)


def test_neither_names_nor_key_nor_tokens_are_in_the_file(tmp_path: Path) -> None:
    recorder = writer(tmp_path / "t")
    recorder.ended(request([1987654321] * 8))
    recorder.close()
    data = (tmp_path / "t").read_bytes()
    key = recorder._blocks._key
    secrets = [
        "acme",
        "s3cret",
        "name-of-request",
        "1987654321",
        key.hex(),
        str(int.from_bytes(key)),
    ]
    assert not any(word.encode() in data for word in secrets)
    assert key not in data and pack([1987654321]) not in data


def test_requests_of_a_scheduler(tmp_path: Path) -> None:
    """Finished, aborted while it waits, and one that hits what another left."""
    engine = Engine(ready(page_size=PAGE), SchedulerConfig())
    recorder = writer(tmp_path / "t")
    for name, prompt, tokens in (("a", PROMPT, 5), ("b", [*PROMPT[:8], 0], 1)):
        engine.submit(name, prompt, tokens)
        run = engine.scheduler.requests[name]
        engine.run()
        recorder.ended(run)
    engine.submit("c", PROMPT, 3)
    waiting = engine.scheduler.requests["c"]
    engine.scheduler.abort("c")
    recorder.ended(waiting)
    recorder.close()
    _, a, b, c = read(tmp_path / "t")
    assert [(x["prompt"], x["output"], x["cached"]) for x in (a, b, c)] == [
        (10, 5, engine.cached["a"]),
        (9, 1, engine.cached["b"]),
        (10, 0, 0),
    ]
    assert engine.cached["b"] == 8 and shared(a["blocks"], b["blocks"]) == 2
    assert shared(a["blocks"], c["blocks"]) == len(c["blocks"]) == 2


def test_old_numbers_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: of many namespaces only the last ones seen keep their number."""
    monkeypatch.setattr(trace, "REMEMBERED", 2)
    spaces = [Namespace(salt=salt) for salt in "abacba"]
    lines = record(tmp_path / "t", *(request(PROMPT, namespace=space) for space in spaces))
    assert [line["ns"] for line in lines] == [1, 2, 1, 3, 4, 5]


def test_lines_reach_the_file_while_it_is_written(tmp_path: Path) -> None:
    recorder = writer(tmp_path / "t")
    recorder.ended(request(PROMPT))
    deadline = time.monotonic() + 20
    while (tmp_path / "t").read_bytes().count(b"\n") < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(read(tmp_path / "t")) == 2
    recorder.close()


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("precious")
    with pytest.raises(FileExistsError):
        writer(tmp_path / "t")
    with pytest.raises(FileNotFoundError):
        writer(tmp_path / "no" / "such" / "folder")
    assert (tmp_path / "t").read_text() == "precious"


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = writer(tmp_path / "t")
    recorder._file.close()
    recorder._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115, the recorder closes it
    recorder.ended(request(PROMPT))
    recorder._thread.join(20)
    for _ in range(3):
        recorder.ended(request(PROMPT))
        recorder.step(1, 1, 1.0)
    recorder.close()
    recorder.close()
    (line,) = caplog.records
    assert line.levelno == logging.ERROR and "No space left" in line.message
    assert recorder._queue.empty() and recorder._file.closed


def test_a_slow_disk_loses_records_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is a pipe that nobody reads until all requests have ended."""
    monkeypatch.setattr(trace, "BACKLOG", 3)
    recorder = writer(tmp_path / "t")
    recorder._file.close()
    out, into = os.pipe()
    recorder._file = open(into, "wb", buffering=0)  # noqa: SIM115, the recorder closes it
    long = request([1] * PAGE * 8192)  # a line of it is more than a pipe holds
    for _ in range(10):
        recorder.ended(long)
    lost = recorder._lost
    with open(out, "rb") as pipe, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(pipe.read)
        recorder.close()
        lines = reading.result(20).splitlines()
    assert lost in (6, 7), "three wait, and one may be with the thread"
    assert len(lines) == 10 - lost
    assert len(json.loads(lines[0])["blocks"]) == 8192
    told = [record.message for record in caplog.records]
    assert len(told) == 2 and "too slowly" in told[0] and f"{lost} records are missing" in told[1]
