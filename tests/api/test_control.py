"""Emptying the cache, ending requests, and what the server tells of itself."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixserve import __version__
from radixserve.messages import Invalidate, Stop
from tests.api.fakes import NO_STATS, READY, Server, stats
from tests.api.sending import CHAT, COMPLETIONS, body, events, finish_of, text_of

pytestmark = pytest.mark.anyio
GUARDED = [
    ("POST", CHAT),
    ("POST", COMPLETIONS),
    ("POST", f"{CHAT}/render"),
    ("POST", f"{COMPLETIONS}/render"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/flush_cache"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/abort_request"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("GET", "/v1/loads"),
    ("GET", "/server_info"),
    ("GET", "/get_server_info"),
]
OPEN = ["/", "/version", "/load", "/health", "/ready", "/metrics", "/docs", "/openapi.json"]


def endless(folder: Path) -> Server:
    server = Server(folder)
    server.say([server.front.vocabulary.encode("a")[0]])
    server.scheduler.pause = 0.005
    return server


@pytest.mark.parametrize("path", ["/flush_cache", "/reset_prefix_cache"])
@pytest.mark.parametrize("sent", [b"", b"{}", b"anything"])
async def test_the_cache_is_emptied(folder: Path, path: str, sent: bytes) -> None:
    server = Server(folder)
    async with server.client() as client:
        got = await client.post(path, content=sent)
        assert got.json() == {"status": "ok", "invalidated_tokens": 48}
        assert (await client.get(path)).status_code == 405
    (order,) = server.scheduler.invalidations
    assert order == Invalidate(order.request_id, 0, None)


async def test_no_cache_is_emptied_before_ready_or_after_the_end(folder: Path) -> None:
    server = Server(folder)
    server.engine.ready = None
    async with server.client() as client:
        assert (await client.post("/flush_cache")).status_code == 503
        server.engine.deliver([READY])
        server.scheduler.invalidations = None  # type: ignore[assignment]
        server.engine.deliver([Stop("the worker died")])
        late = await client.post("/flush_cache")
        assert late.status_code == 503 and "the worker died" in late.text


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("by", ["x-request-id", "rid", "all"])
async def test_a_request_is_aborted(folder: Path, streamed: bool, by: str) -> None:
    server = endless(folder)
    fields = body(COMPLETIONS, stream=streamed, n=2)
    order: dict[str, Any] = {"request_id": "mine"}
    if by != "x-request-id":
        order = {"rid": "mine"} if by == "rid" else {"abort_all": True}
    async with server.client() as client:
        headers = {"x-request-id": "mine"}
        asked = asyncio.create_task(client.post(COMPLETIONS, json=fields, headers=headers))
        while len(server.scheduler.submits) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        nobody = await client.post("/abort_request", json={"request_id": "other"})
        assert nobody.json() == {"aborted": 0}
        assert (await client.post("/abort_request", json=order)).json() == {"aborted": 2}
        got = await asyncio.wait_for(asked, 10)
    assert got.status_code == 200
    if streamed:
        chunks = events(got.text)
        assert finish_of(chunks, 0) == finish_of(chunks, 1) == ["abort"]
        assert text_of(chunks) and chunks[-1] == "[DONE]"
    else:
        assert [c["finish_reason"] for c in got.json()["choices"]] == ["abort", "abort"]
        assert all(c["text"] for c in got.json()["choices"])
    assert sorted(server.scheduler.aborts) == sorted(
        s.request_id for s in server.scheduler.submits
    ), "each once"
    assert server.engine.unfinished == 0


async def test_a_stream_is_aborted_by_the_id_that_it_shows(folder: Path) -> None:
    server = endless(folder)
    async with server.listening() as url, httpx.AsyncClient(base_url=url) as client:
        fields = body(CHAT, stream=True)
        async with client.stream("POST", CHAT, json=fields, timeout=20) as response:
            lines = response.aiter_lines()
            (first,) = events(await anext(lines) + "\n\n")
            assert (await client.get("/load")).json() == {"server_load": 1}
            order = {"request_id": first["id"]}
            assert (await client.post("/abort_request", json=order)).json() == {"aborted": 1}
            rest = [line async for line in lines]
        assert '"finish_reason":"abort"' in rest[-4] and rest[-2] == "data: [DONE]"
        assert (await client.get("/load")).json() == {"server_load": 0}


async def test_whom_to_abort_must_be_said(folder: Path) -> None:
    async with Server(folder).client() as client:
        for fields in ({}, {"request_id": ""}, {"abort_all": False}):
            got = await client.post("/abort_request", json=fields)
            assert (got.status_code, got.json()["error"]["param"]) == (400, "request_id")


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_the_key_guards(folder: Path, method: str, path: str) -> None:
    server = Server(folder, api_key="secret")
    async with server.client() as client:
        got = await client.request(method, path, json={} if method == "POST" else None)
        assert got.status_code == 401 and got.json()["error"]["code"] == "invalid_api_key"
        headers = {"authorization": "Bearer secret"}
        right = await client.request(method, path, json={}, headers=headers)
        assert right.status_code in (200, 400)
        assert "secret" not in right.text
    assert len(server.scheduler.invalidations) == ("cache" in path)


@pytest.mark.parametrize("path", OPEN)
async def test_what_is_open(folder: Path, path: str) -> None:
    async with Server(folder, api_key="secret").client() as client:
        got = await client.get(path)
        assert got.status_code == 200 and "secret" not in got.text
        if path not in ("/docs", "/openapi.json"):
            assert (await client.head(path)).content == b""
            assert (await client.head(path)).status_code == 200


async def test_server_info(folder: Path) -> None:
    async with Server(folder, api_key="k3y", chat_template="").client() as client:
        headers = {"authorization": "Bearer k3y"}
        got = (await client.get("/server_info", headers=headers)).json()
        assert got == (await client.get("/get_server_info", headers=headers)).json()
        assert (await client.get("/version")).json() == {"version": __version__}
    assert got["version"] == __version__ and got["served_model_name"] == "tiny"
    assert (got["page_size"], got["block_size"], got["num_pages"]) == (16, 16, 100)
    assert (got["max_model_len"], got["max_total_num_tokens"]) == (256, 1600)
    assert got["model_path"] == str(folder)
    assert got["settings"]["scheduler"]["schedule_policy"] == "default"
    assert "api_key" not in got["settings"]["server"]


async def test_loads(folder: Path) -> None:
    server = Server(folder)
    server.engine.stats = None
    async with server.client() as client:
        assert (await client.get("/v1/loads")).status_code == 503
        server.engine.deliver(
            [
                stats(
                    running=3,
                    waiting=4,
                    queued_tokens=70,
                    pages_total=100,
                    pages_free=50,
                    pages_evictable=25,
                    prompt_tokens=80,
                    cached_tokens=60,
                )
            ]
        )
        got = (await client.get("/v1/loads?include=core,queues")).json()
        server.engine.deliver([NO_STATS])
        empty = (await client.get("/v1/loads")).json()
    (load,) = got["loads"]
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (3, 4)
    assert (load["num_used_tokens"], load["max_total_num_tokens"]) == (400, 1600)
    assert (load["token_usage"], load["cache_hit_rate"]) == (0.25, 0.75)
    assert got["aggregate"]["total_reqs"] == 7
    assert empty["loads"][0]["token_usage"] == 0.0


async def test_ready_until_the_server_is_told_to_stop(folder: Path) -> None:
    server = Server(folder)
    server.engine.ready = None
    async with server.client() as client:
        starting = await client.get("/ready")
        assert (starting.status_code, starting.headers["retry-after"]) == (503, "1")
        assert starting.json()["error"]["code"] == "not_ready"
        server.engine.deliver([READY])
        assert (await client.get("/ready")).json() == {"status": "ready"}
        server.engine.stop("")
        stopping = await client.get("/ready")
        assert stopping.status_code == 503
        assert stopping.json()["error"]["message"] == "the server is shutting down"
