"""Request ids, the line in the log for each request, and pages of other origins."""

import logging
import re
from pathlib import Path

import httpx
import pytest

from tests.api.fakes import Server
from tests.api.sending import CHAT, COMPLETIONS, answer, body, post, stream

pytestmark = pytest.mark.anyio
SECRET = "the colour of the king's umbrella"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the access log says; grows while the test runs."""
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    caplog.set_level("INFO", "radixserve")
    log = logging.getLogger("radixserve.api.access")
    keep = Keep()
    log.addHandler(keep)
    yield said
    log.removeHandler(keep)


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_line_for_each_request(
    folder: Path, route: str, streamed: bool, lines: list[str]
) -> None:
    server = Server(folder)
    server.scheduler.cached = lambda _: 2
    async with server.client() as client:
        fields = body(route, stream=streamed, n=2, user=SECRET, max_tokens=3, zzz=SECRET)
        fields |= {"prompt": SECRET, "messages": [{"role": "user", "content": SECRET}]}
        got = await client.post(route, json=fields, headers={"x-request-id": "r-1"})
    assert got.status_code == 200 and got.headers["x-request-id"] == "r-1"
    count = len(server.scheduler.submits[0].prompt) // 4
    (line,) = lines
    assert re.fullmatch(rf"POST {route} 200 \d+ ms, {count} prompt tokens, 2 cached, r-1", line)


async def test_nothing_that_was_said_is_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "radixserve")
    async with Server(folder, SECRET, api_key="k3y").client() as client:
        headers = {"authorization": "Bearer k3y"}
        fields = {"prompt": SECRET, "stop": SECRET, "messages": [{"role": SECRET}]}
        for route in (CHAT, COMPLETIONS, "/tokenize"):
            await client.post(route + "?q=" + SECRET, json=fields, headers=headers)
            await client.post(route, content=SECRET.encode(), headers=headers)
    assert caplog.text.count("POST") == 6
    assert SECRET not in caplog.text and "umbrella" not in caplog.text and "k3y" not in caplog.text


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129, "a\tb", "caf\u00e9"])
async def test_ids_that_cannot_be_used_are_replaced(folder: Path, sent: str) -> None:
    async with Server(folder).client() as client:
        headers = httpx.Headers({"x-request-id": sent}, "utf-8")
        got = await client.get("/version", headers=headers)
        assert re.fullmatch("req-[0-9a-f]{24}", got.headers["x-request-id"])
        again = await client.get("/version", headers=headers)
        assert again.headers["x-request-id"] != got.headers["x-request-id"]


async def test_errors_have_an_id_and_a_line_too(folder: Path, lines: list[str]) -> None:
    server = Server(folder, api_key="k")
    async with server.client() as client:
        headers = {"x-request-id": "r-2"}
        for method, path, status in (
            ("GET", "/nothing/here%0Aor%00there", 404),
            ("DELETE", "/version", 405),
            ("POST", CHAT, 401),
        ):
            got = await client.request(method, path, headers=headers)
            assert (got.status_code, got.headers["x-request-id"]) == (status, "r-2")
            assert f" {status} " in lines[-1] and "\n" not in lines[-1]
        server.engine.trouble = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        broken = await client.get("/health", headers=headers)
    assert broken.status_code == 500 and broken.json()["error"]["code"] == "internal_error"
    assert broken.headers["x-request-id"] == "r-2"
    assert lines[-1].startswith("GET /health 500 ") and len(lines) == 4


async def test_a_client_that_leaves_has_a_line(folder: Path, lines: list[str]) -> None:
    server = Server(folder)
    server.scheduler.pause = 60
    async with server.listening() as url, httpx.AsyncClient(base_url=url) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(CHAT, json=body(CHAT), timeout=httpx.Timeout(20, read=0.3))
    assert len(lines) == 1 and " 499 " in lines[0]


async def test_origins(folder: Path) -> None:
    preflight = {
        "origin": "https://a.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    allowed = "access-control-allow-origin"
    async with Server(folder, api_key="k").client() as client:
        got = await client.options(CHAT, headers=preflight)
        assert got.status_code == 405 and allowed not in got.headers
    both = "https://a.example, https://b.example"
    for origins, wanted in ((both, "https://a.example"), ("*", "*"), ("https://c.example", None)):
        server = Server(folder, api_key="k", cors_origins=origins)
        async with server.client() as client:
            got = await client.options(CHAT, headers=preflight)
            assert got.status_code == (200 if wanted else 400)
            assert got.headers.get(allowed) == wanted
            if wanted:
                assert "authorization" in got.headers["access-control-allow-headers"]
            headers = {"origin": "https://a.example", "authorization": "Bearer k"}
            answered = await client.post(CHAT, json=body(CHAT), headers=headers)
            assert answered.status_code == 200 and answered.headers.get(allowed) == wanted
            refused = await client.post(CHAT, json={}, headers={"origin": "https://a.example"})
            assert refused.status_code == 401 and refused.headers.get(allowed) == wanted


async def test_without_origins_no_header_speaks_of_them(folder: Path) -> None:
    async with Server(folder).client() as client:
        await answer(client, CHAT)
        await stream(client, CHAT)
        got = await post(client, CHAT)
    assert not [name for name in got.headers if name.startswith("access-control")]
