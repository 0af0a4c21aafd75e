"""Bytes on a real socket that no client of good will sends."""

import asyncio
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from radixserve.api.http import MAX_HEAD_BYTES
from tests.api.fakes import Server
from tests.api.sending import COMPLETIONS, body

pytestmark = pytest.mark.anyio
HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"
POST = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
PROMPT = json.dumps(body(COMPLETIONS)).encode()
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
LENGTHS = b"Content-Length: 5\r\n"


async def exchange(folder: Path, *pieces: bytes) -> tuple[bytes, bool]:
    """What comes back on one connection, and whether the server ended it or just went silent."""
    server = Server(folder, "ok")
    async with server.listening() as url:
        where = urlsplit(url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        got, ended = b"", True
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            while more := await asyncio.wait_for(reader.read(1 << 16), 1):
                got += more
        except TimeoutError:
            ended = False
        except ConnectionError:
            pass
        writer.close()
        return got, ended


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


ENDLESS = {
    "headers": [HEAD] + [b"X: " + b"a" * 1000 + b"\r\n"] * 80,
    "one header": [HEAD + b"X: "] + [b"a" * 1000] * 80,
    "url": [b"GET /" + b"a" * 1000] + [b"a" * 1000] * 80,
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_a_head_without_an_end_is_refused(folder: Path, what: str) -> None:
    got, ended = await exchange(folder, *ENDLESS[what])
    assert ended
    assert not got or (got.startswith(b"HTTP/1.1 400 ") and b"at most 65536 bytes" in got)


async def test_trailers_and_chunk_extensions_without_an_end(folder: Path) -> None:
    for start, more in ((b"0\r\n", b"X: " + b"a" * 1000 + b"\r\n"), (b"5;", b"a" * 1000)):
        got, ended = await exchange(folder, CHUNKED + chunk(PROMPT) + start, *[more] * 80)
        assert ended and (not got or got.startswith(b"HTTP/1.1 400 "))


async def test_a_long_body_is_no_head(folder: Path) -> None:
    padded = PROMPT + b" " * (3 * MAX_HEAD_BYTES)
    pieces = [chunk(padded[at : at + 500]) for at in range(0, len(padded), 500)]
    got, _ = await exchange(folder, CHUNKED, *pieces, b"0\r\n\r\n", HEAD + b"\r\n")
    assert got.count(b"HTTP/1.1 200 ") == 2


async def test_many_heads_on_one_connection(folder: Path) -> None:
    request = HEAD + b"X: " + b"a" * 30_000 + b"\r\n\r\n"
    got, _ = await exchange(folder, *[request] * 5)
    assert got.count(b"HTTP/1.1 200 ") == 5


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x16\x03\x01\r\n\r\n",
        b"GET\r\n\r\n",
        HEAD + b"A: b\0c\r\n\r\n",
        POST + b"Content-Length: -5\r\n\r\n",
        POST + LENGTHS + b"Content-Length: 6\r\n\r\nhello!",
        POST + LENGTHS + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_no_http(folder: Path, wrong: bytes) -> None:
    got, ended = await exchange(folder, wrong)
    assert ended and got.startswith(b"HTTP/1.1 400 ")
