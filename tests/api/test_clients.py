"""Over real sockets: the official client, and clients that leave or stall."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from radixserve.api import events
from radixserve.api.access import Record
from radixserve.api.completions import CompletionFields, _Completion
from radixserve.messages import Stop
from tests.api.fakes import Server
from tests.api.sending import CHAT, COMPLETIONS, body

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
USER: Any = [{"role": "user", "content": "hi"}]


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


def endless(folder: Path) -> Server:
    """Answers one token each 10 ms, up to max_tokens."""
    server = Server(folder, [70])
    server.scheduler.pause = 0.01
    return server


async def test_the_official_client(folder: Path) -> None:
    server = Server(folder, "Hello 🎉", api_key="secret")
    async with server.listening() as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="secret") as client:
            assert [m.id async for m in client.models.list()] == ["tiny"]
            assert (await client.models.retrieve("tiny")).owned_by == "radixserve"
            got = await client.chat.completions.create(model="tiny", messages=USER, logprobs=True)
            assert got.choices[0].message.content == "Hello 🎉"
            assert got.usage and got.usage.prompt_tokens_details
            assert got.usage.prompt_tokens_details.cached_tokens == 0
            said = ""
            async with client.chat.completions.stream(model="tiny", messages=USER) as stream:
                async for item in stream:
                    said += item.delta if item.type == "content.delta" else ""
            assert said == "Hello 🎉"
            completion = await client.completions.create(model="tiny", prompt=["a", "b"], n=2)
            assert [c.text for c in completion.choices] == ["Hello 🎉"] * 4
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="no", messages=USER)
            with pytest.raises(openai.BadRequestError) as caught:
                await client.completions.create(model="tiny", prompt=[1] * 300)
            assert caught.value.code == "context_length_exceeded"
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()


@both
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_leaves_aborts_its_requests(
    folder: Path, route: str, streamed: bool
) -> None:
    server = endless(folder)
    async with server.listening() as url, httpx.AsyncClient(base_url=url) as client:
        fields = body(route, n=2, stream=streamed, max_tokens=200)
        with pytest.raises(httpx.ReadTimeout):
            async with client.stream("POST", route, json=fields, timeout=0.4) as response:
                async for _ in response.aiter_raw():
                    await asyncio.sleep(0.1)
                    raise httpx.ReadTimeout("enough")
        await eventually(lambda: len(server.scheduler.aborts) == 2)
        assert set(server.scheduler.aborts) == {s.request_id for s in server.scheduler.submits}
        assert not server.scheduler.finished


async def test_streams_closed_at_any_moment_are_aborted_once(folder: Path) -> None:
    server = endless(folder)
    server.scheduler.pause = 0.002

    async def visit(client: httpx.AsyncClient, chunks: int) -> None:
        fields = body(COMPLETIONS, stream=True, max_tokens=8)
        async with client.stream("POST", COMPLETIONS, json=fields) as response:
            async for _ in response.aiter_lines():
                chunks -= 1
                if chunks <= 0:
                    return

    async with server.listening() as url, httpx.AsyncClient(base_url=url) as client:
        await asyncio.gather(*(visit(client, chunks) for chunks in range(24)))
        scheduler = server.scheduler
        await eventually(lambda: len(scheduler.aborts) + len(scheduler.finished) == 24)
        await asyncio.sleep(0.1)
    assert sorted(scheduler.aborts + scheduler.finished) == sorted(
        s.request_id for s in scheduler.submits
    )
    assert scheduler.aborts and scheduler.finished


async def test_leaving_while_the_prompt_is_made_submits_nothing(folder: Path) -> None:
    server = Server(folder)
    started = asyncio.Event()

    async def slow(work: Callable[[], object]) -> object:
        started.set()
        await asyncio.sleep(30)
        raise AssertionError("the client left long ago")

    server.front.in_thread = slow  # type: ignore[assignment,method-assign]
    async with server.listening() as url, httpx.AsyncClient(base_url=url) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(CHAT, json=body(CHAT), timeout=0.3)
        assert started.is_set()
    assert not server.scheduler.submits


@both
async def test_engine_death_ends_open_streams_with_an_error(folder: Path, route: str) -> None:
    server = endless(folder)
    async with server.listening() as url, httpx.AsyncClient(base_url=url) as client:
        lines = []
        fields = body(route, stream=True)
        async with client.stream("POST", route, json=fields) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                lines.append(line)
                if len(lines) == 3:
                    server.engine.deliver([Stop("the worker died")])
        assert '"error":{"message":"the worker died"' in "".join(lines[-2:])
        assert "[DONE]" not in "".join(lines)
        assert (await client.get("/health")).status_code == 503
        response = await client.post(route, json=body(route))
        assert response.status_code == 503
    assert not server.scheduler.aborts


async def test_the_official_client_sees_the_error_of_a_stream(folder: Path) -> None:
    server = endless(folder)
    async with (
        server.listening() as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client,
    ):
        stream = await client.chat.completions.create(model="tiny", messages=USER, stream=True)
        with pytest.raises(openai.APIError, match="the worker died"):
            async for _ in stream:
                server.engine.deliver([Stop("the worker died")])


@both
async def test_a_client_that_waits_long_is_told_so(
    folder: Path, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients and proxies give up on a stream that says nothing for minutes."""
    monkeypatch.setattr(events, "QUIET_SECONDS", 0.05)
    server = Server(folder, "Hello")
    server.scheduler.pause = 0.2
    async with server.listening() as url:
        async with httpx.AsyncClient(base_url=url) as client:
            told = (await client.post(route, json=body(route, stream=True))).text
            server.scheduler.reject = "queue_full"
            refused = await client.post(route, json=body(route, stream=True))
        server.scheduler.reject = ""
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client:
            stream = await client.completions.create(model="tiny", prompt="x", stream=True)
            said = "".join([chunk.choices[0].text async for chunk in stream])
    assert told.startswith(events.WAITING.decode() * 2) and told.endswith("[DONE]\n\n")
    assert refused.status_code == 503, "refused before anything was sent"
    assert said == "Hello"


async def test_an_error_after_a_long_wait_is_an_event(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "QUIET_SECONDS", 0.05)
    server = endless(folder)
    server.scheduler.pause = 30
    async with (
        server.listening() as url,
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", CHAT, json=body(CHAT, stream=True)) as response,
    ):
        assert response.status_code == 200
        server.engine.deliver([Stop("the worker died")])
        lines = [line async for line in response.aiter_lines() if line.startswith("data")]
    assert len(lines) == 1 and "the worker died" in lines[0]


async def test_a_stalled_client_is_dropped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STALL_SECONDS", 0.2)
    taken = 0

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(30)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal taken
        taken += 1
        if taken > 3:
            await asyncio.sleep(30)

    server = endless(folder)
    fields = CompletionFields(prompt="x", stream=True)
    stream = events.EventStream(_Completion(server.front, fields, ["x"], Record("r")).events())
    async with asyncio.timeout(5):
        await stream({}, receive, send)
    assert len(server.scheduler.aborts) == 1


async def test_health_is_smooth_while_a_long_prompt_is_encoded(folder: Path) -> None:
    server = Server(folder)
    ready = server.engine.ready
    assert ready is not None
    long = "one two three " * 100_000
    server.engine.ready = msgspec.structs.replace(ready, max_total_tokens=1 << 30)
    async with (
        server.listening() as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        server.say([2])
        task = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": long}))
        polls = 0
        while not task.done():
            async with asyncio.timeout(2):
                assert (await client.get("/health")).status_code == 200
            polls += 1
            await asyncio.sleep(0.01)
        assert (await task).status_code == 200
    assert polls > 3
