"""The OpenAPI document tells of every route, and its page needs nothing from elsewhere."""

import re
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest

from radixserve.api.anthropic.fields import MessagesFields, PromptFields
from radixserve.api.chat import ChatFields
from radixserve.api.completions import CompletionFields
from radixserve.api.responses.fields import ResponseFields
from tests.api.fakes import Server
from tests.api.sending import COUNT, MESSAGES
from tests.api.test_server import all_routes

pytestmark = pytest.mark.anyio
HIDDEN = {"/docs", "/openapi.json"}


async def read(folder: Path, **server: Any) -> dict[str, Any]:
    async with Server(folder, **server).client() as client:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of operations with one id
            got = await client.get("/openapi.json")
    assert got.status_code == 200
    document: dict[str, Any] = got.json()
    return document


async def test_every_route_is_told(folder: Path) -> None:
    document = await read(folder)
    told = {
        (path.partition("{")[0], verb.upper())
        for path, operations in document["paths"].items()
        for verb in operations
    }
    served = {
        (route.path.partition("{")[0], verb)
        for route in all_routes(Server(folder).app.routes)
        for verb in route.methods - {"HEAD"}
        if route.path not in HIDDEN
    }
    assert told == served and ("/v1/chat/completions", "POST") in told


async def test_every_operation_says_what_it_takes_and_how_it_fails(folder: Path) -> None:
    document = await read(folder)
    ids = set()
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            assert operation["description"], path
            ids.add(operation["operationId"])
            name = "MessagesErrorBody" if path in (MESSAGES, COUNT) else "ErrorBody"
            assert operation["responses"]["default"]["content"]["application/json"]["schema"] == {
                "$ref": f"#/components/schemas/{name}"
            }
            assert "422" not in operation["responses"]
            takes_nothing = path in ("/flush_cache", "/reset_prefix_cache") or "cancel" in path
            assert ("requestBody" in operation) == (verb == "post" and not takes_nothing), path
    assert len(ids) == sum(len(operations) for operations in document["paths"].values())


async def test_all_references_lead_somewhere(folder: Path) -> None:
    document = await read(folder)
    text = msgspec.json.encode(document).decode()
    names = set(re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', text))
    assert names <= document["components"]["schemas"].keys()
    assert "$defs" not in text and "x-schemas" not in text
    for kind in (ChatFields, CompletionFields, MessagesFields, PromptFields, ResponseFields):
        properties = document["components"]["schemas"][kind.__name__]["properties"]
        assert properties.keys() == {f.encode_name for f in msgspec.structs.fields(kind)}
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]
    assert "messages" in str(body) and "required" in str(body)


async def test_who_asks_for_the_key(folder: Path) -> None:
    assert "securitySchemes" not in (await read(folder))["components"]
    document = await read(folder, api_key="k")
    guarded = {
        path
        for path, operations in document["paths"].items()
        if any("security" in operation for operation in operations.values())
    }
    assert {"/flush_cache", "/abort_request", "/v1/loads", "/tokenize"} <= guarded
    assert not {"/health", "/ready", "/metrics", "/version", "/load", "/"} & guarded


async def test_the_page_works_offline(folder: Path) -> None:
    async with Server(folder).client() as client:
        page = await client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "openapi.json" in page.text
    assert "http://" not in page.text and "https://" not in page.text
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", page.text)
