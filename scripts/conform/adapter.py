"""A pytest plugin, loaded into llama.cpp's tests: sends what they ask to the server under test.

llama.cpp serves what it has loaded whatever the request's `model` says, has its routes with and
without /v1, and capitals in the names of headers, which have none by HTTP; its tests count on all
three. Nothing else is changed. Tests that do not fit are skipped with the reason. Runs in the
environment of the suites, without this package.
"""

import json
import os
from typing import Any

import openai
import pytest
import requests

TOLD = json.loads(os.environ["CONFORMANCE_TARGET"])
ROUTES = ("/chat/completions", "/completions", "/responses")
PLACEHOLDER_KEY = "dummy"  # what they give the client where the server asks for none

_send = requests.Session.request


def _request(self: Any, method: str, url: str, **options: Any) -> Any:
    path = "/" + url.split("/", 3)[3]
    options.setdefault("timeout", 300)
    if options.get("headers") is None:
        options["headers"] = {"authorization": f"Bearer {TOLD['key']}"}
    if isinstance(options.get("json"), dict):
        options["json"] = options["json"] | {"model": TOLD["model"]}
    url = TOLD["url"] + ("/v1" if path in ROUTES else "") + path
    response = _send(self, method, url, **options)
    named = {name.title(): value for name, value in response.headers.items()}
    response.headers = type(response.headers)(named)
    return response


class _Client(openai.OpenAI):
    def __init__(self, *, api_key: str, **options: Any) -> None:
        key = TOLD["key"] or "none" if api_key == PLACEHOLDER_KEY else api_key
        super().__init__(**options | {"api_key": key, "base_url": f"{TOLD['url']}/v1"})

    def _prepare_options(self, options: Any) -> Any:
        if isinstance(options.json_data, dict):
            options.json_data["model"] = TOLD["model"]
        return super()._prepare_options(options)


requests.Session.request = _request  # type: ignore[assignment,method-assign]
openai.OpenAI = _Client  # type: ignore[assignment,misc]


def _reason(name: str) -> str:
    excuses: dict[str, str] = TOLD["excuses"]
    starts = [
        key for key in excuses if name == key or (key[-1] == "*" and name.startswith(key[:-1]))
    ]
    return excuses[max(starts, key=len)] if starts else ""


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if why := _reason(f"{item.module.__name__.rpartition('.')[2]}::{item.name}"):
            item.add_marker(pytest.mark.skip(reason=why))
