"""`--unreadable-parts placeholder`: a text tells the model what it cannot see, in all dialects."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.fakes import Server
from tests.api.sending import CHAT, COUNT, MESSAGES, fault_of, post

pytestmark = pytest.mark.anyio
RESPONSES = "/v1/responses"
OMITTED = "[{} omitted: this model reads text only]"


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts]}]


def text(said: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": said}


URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
DOCUMENT = {"type": "document", "source": {"type": "url", "url": "http://x/y.pdf"}}
INPUT_IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
USE = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
CALL = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": [text("seen:"), IMAGE]}

CASES: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    (CHAT, {"messages": user(text("what?"), URL)}, ("what?", "image")),
    (CHAT, {"messages": user({"type": "input_audio"}, text("hm"))}, ("audio", "hm")),
    (CHAT, {"messages": user({"type": "file", "file": {"file_id": "f"}})}, ("file",)),
    (CHAT, {"messages": user({"type": "video_url", "video_url": {}})}, ("video",)),
    (MESSAGES, {"messages": user(IMAGE, text("what?"))}, ("image", "what?")),
    (MESSAGES, {"messages": user(DOCUMENT)}, ("document",)),
    (
        MESSAGES,
        {"messages": [*user(text("go")), {"role": "assistant", "content": [USE]}, *user(RESULT)]},
        ("go", "seen:", "image"),
    ),
    (RESPONSES, {"input": user(text("what?", "input_text"), INPUT_IMAGE)}, ("what?", "image")),
    (
        RESPONSES,
        {
            "input": [
                CALL,
                {"type": "function_call_output", "call_id": "1", "output": [INPUT_IMAGE]},
            ]
        },
        ("image",),
    ),
]


@pytest.mark.parametrize(("route", "fields", "said"), CASES)
async def test_a_text_stands_in_its_place(
    folder: Path, route: str, fields: dict[str, Any], said: tuple[str, ...]
) -> None:
    kinds = ("image", "audio", "file", "video", "document")
    wanted = [OMITTED.format(word) if word in kinds else word for word in said]
    fields = {"max_tokens": 3} | fields
    server = Server(folder, unreadable_parts="placeholder")
    async with server.client() as client:
        got = await client.post(route, json=fields)
        assert got.status_code == 200, got.text
        places = [server.prompt.find(word) for word in wanted]
        assert places == sorted(places) and places[0] >= 0, server.prompt
        if route == MESSAGES:
            count = await client.post(COUNT, json={"messages": fields["messages"]})
            assert count.json()["input_tokens"] == len(server.scheduler.submits[-1].prompt) // 4
    async with Server(folder).client() as client:
        got = await client.post(route, json=fields)
    assert got.status_code == 400, "by default it is refused"
    assert "is of type" in fault_of(route, got)["message"]


async def test_a_stored_response_goes_on_with_the_placeholder(folder: Path) -> None:
    server = Server(folder, unreadable_parts="placeholder")
    async with server.client() as client:
        first = await client.post(RESPONSES, json={"input": user(INPUT_IMAGE)})
        next = {"input": "and now?", "previous_response_id": first.json()["id"]}
        assert (await client.post(RESPONSES, json=next)).status_code == 200
    assert OMITTED.format("image") in server.prompt


async def test_no_other_part_gets_one(folder: Path) -> None:
    async with Server(folder, unreadable_parts="placeholder").client() as client:
        for kind in ("txt", None, 3, [], "tool_use"):
            got = await post(client, CHAT, messages=user({"type": kind}))
            assert got.status_code == 400, "a misspelt part must not pass for a picture"


async def test_each_kind_is_logged_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "radixserve")
    async with Server(folder, unreadable_parts="placeholder").client() as client:
        for _ in range(2):
            await post(client, CHAT, messages=user(URL))
            await post(client, MESSAGES, messages=user(IMAGE))
            await post(client, CHAT, messages=user({"type": "input_audio"}))
    assert caplog.text.count("kind image") == 1 and caplog.text.count("kind audio") == 1
