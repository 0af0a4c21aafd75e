"""`--strict-fields`: what a server that tests its clients refuses, and what it still takes."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from radixserve.api import body as body_module
from tests.api.fakes import Server
from tests.api.sending import CHAT, COMPLETIONS, COUNT, MESSAGES, body, fault_of

pytestmark = pytest.mark.anyio
RESPONSES = "/v1/responses"
ROUTES = (CHAT, COMPLETIONS, MESSAGES, COUNT, RESPONSES)


def asked(route: str, **fields: Any) -> dict[str, Any]:
    return (body(route) if route != RESPONSES else {"input": "hi"}) | {"model": "tiny"} | fields


@pytest.fixture
def strict(folder: Path) -> Server:
    return Server(folder, strict_fields=True)


@pytest.mark.parametrize("route", ROUTES)
async def test_unknown_fields_are_refused_by_name(strict: Server, route: str) -> None:
    async with strict.client() as client:
        assert (await client.post(route, json=asked(route))).status_code == 200
        for value in (1, None, {}):
            got = await client.post(route, json=asked(route, zzz=value))
            assert got.status_code == 400
            error = fault_of(route, got)
            assert "zzz" in error["message"]
            assert route in (MESSAGES, COUNT) or (
                (error["param"], error["code"]) == ("zzz", "unknown_parameter")
            )


@pytest.mark.parametrize("route", ROUTES)
async def test_a_model_must_be_named(strict: Server, route: str) -> None:
    async with strict.client() as client:
        for model in ({}, {"model": None}):
            got = await client.post(
                route, json={k: v for k, v in asked(route).items() if k != "model"} | model
            )
            assert got.status_code == 400
            assert "model" in fault_of(route, got)["message"]


@pytest.mark.parametrize("route", ROUTES)
async def test_what_is_known_to_have_no_effect_is_taken(strict: Server, route: str) -> None:
    own = {**dict.fromkeys(body_module.WITHOUT_EFFECT), **dict.fromkeys(body_module.UNSUPPORTED)}
    async with strict.client() as client:
        got = await client.post(route, json=own | asked(route))
        assert got.status_code == 200, got.text


NESTED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"stream_options": {"include_usages": True}}, "stream_options.include_usages"),
    (COMPLETIONS, {"stream_options": {"store": 1, "x": 1}}, "stream_options.x"),
    (RESPONSES, {"text": {"formats": {}}}, "text.formats"),
    (MESSAGES, {"thinking": {"type": "enabled", "budget": 9}}, "thinking.budget"),
    (MESSAGES, {"messages": [{"role": "user", "content": "x", "weight": 1}]}, "messages[0].weight"),
]


@pytest.mark.parametrize(("route", "fields", "path"), NESTED)
async def test_unknown_fields_within_are_refused_by_their_path(
    folder: Path, strict: Server, route: str, fields: dict[str, Any], path: str
) -> None:
    async with strict.client() as client, Server(folder).client() as lenient:
        got = await client.post(route, json=asked(route, **fields))
        assert got.status_code == 400 and f"{path} is not known" in fault_of(route, got)["message"]
        assert (await lenient.post(route, json=asked(route, **fields))).status_code == 200


async def test_the_document_tells_of_it(folder: Path) -> None:
    required, told = [], []
    for strict in (False, True):
        async with Server(folder, strict_fields=strict).client() as client:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                document = (await client.get("/openapi.json")).json()
        told.append(document["info"]["description"])
        schema = document["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]
        required.append(str(schema).count("'required': ['model']"))
        abort = str(document["paths"]["/abort_request"]["post"]["requestBody"])
        assert "'required': ['model']" not in abort, "it has no such field"
    assert required == [0, 1]
    assert "Unknown fields are ignored" in told[0] and "Unknown fields are refused" in told[1]
