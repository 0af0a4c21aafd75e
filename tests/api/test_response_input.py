"""What `/v1/responses` takes: items of all kinds as prompts, and what is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.fakes import Server
from tests.api.responding import RESPONSES, respond

pytestmark = pytest.mark.anyio

END = "<|im_end|>\n"
USER = {"role": "user", "content": "hi"}
GO: dict[str, Any] = {"type": "function", "name": "go"}


@pytest.fixture
def server(folder: Path) -> Server:
    return Server(folder, "Yes")


def call(**fields: Any) -> dict[str, Any]:
    base = {"type": "function_call", "call_id": "c1", "name": "go", "arguments": '{"a":1}'}
    return base | fields


def result(output: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c1", "output": output}


async def prompt_of(server: Server, items: Any, **fields: Any) -> str:
    async with server.client() as client:
        await respond(client, items, **fields)
    return server.prompt


async def test_messages_of_all_roles_and_parts(server: Server) -> None:
    items = [
        {"type": "message", "role": "developer", "content": "A", "id": "msg_random"},
        {"role": "system", "content": [{"type": "input_text", "text": "B"}]},
        {"role": "user", "content": [{"type": "text", "text": "C"}]},
        {
            "type": "message",
            "role": "assistant",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "D", "annotations": []}],
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "E"}]},
        USER,
    ]
    roles = ["system", "system", "user", "assistant", "assistant", "user"]
    said = "".join(
        f"<|im_start|>{role}\n{text}{END}"
        for role, text in zip(roles, [*"ABCDE", "hi"], strict=True)
    )
    assert await prompt_of(server, items) == f"<s>{said}<|im_start|>assistant\n"


async def test_ids_never_reach_the_prompt(server: Server) -> None:
    def items(mark: str) -> list[dict[str, Any]]:
        return [
            USER | {"id": f"msg_{mark}"},
            call(id=f"fc_{mark}", status="completed"),
            result() | {"id": f"fco_{mark}"},
        ]

    assert await prompt_of(server, items("1")) == await prompt_of(server, items("2"))


async def test_one_answer_is_one_message(server: Server) -> None:
    seen: list[Any] = []
    template = server.front.template
    assert template is not None
    render = template.render

    def spy(messages: Any, **more: Any) -> str:
        seen.append(messages)
        return render(messages, **more)

    template.render = spy  # type: ignore[method-assign]
    thoughts = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm"}]}
    items = [
        USER,
        thoughts | {"summary": []},
        {"role": "assistant", "content": "I go."},
        call(),
        call(call_id="c2", namespace="ns"),
        result([{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
        call(call_id="c3"),
    ]
    await prompt_of(server, items)
    user, answer, tool, again = seen[0]
    assert user["role"] == "user"
    assert (answer["content"], answer["reasoning_content"]) == ("I go.", "Hm")
    assert [c["function"]["name"] for c in answer["tool_calls"]] == ["go", "ns.go"]
    assert answer["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert (tool["role"], tool["content"], tool["name"]) == ("tool", "x\ny", "go")
    assert "reasoning_content" not in again and len(again["tool_calls"]) == 1


async def test_effort_is_a_variable_of_the_template(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ reasoning_effort }} {{ messages[-1].content }}")
    server = Server(folder, chat_template=str(file))
    assert await prompt_of(server, "x", reasoning={"effort": "high"}) == "high x"


async def test_a_conversation_that_is_too_long(server: Server) -> None:
    long = [{"role": "user", "content": f"{i} " + "x" * 40} for i in range(9)]
    items = [{"role": "developer", "content": "D"}, *long]
    async with server.client() as client:
        got = await client.post(RESPONSES, json={"input": items})
        error = got.json()["error"]
        assert (got.status_code, error["code"], error["param"]) == (
            400,
            "context_length_exceeded",
            "input",
        )
        made = await respond(client, items, truncation="auto")
        kept = [i for i in range(9) if f"user\n{i} x" in server.prompt]
        assert kept == list(range(kept[0], 9)) and 0 < kept[0] < 8
        assert server.prompt.startswith(f"<s><|im_start|>system\nD{END}<|im_start|>user\n")
        assert made["usage"]["input_tokens"] < 256
        fewer = [items[0], *long[kept[0] - 1 :]]
        assert (await client.post(RESPONSES, json={"input": fewer})).status_code == 400
        got = await client.post(RESPONSES, json={"input": "x" * 999, "truncation": "auto"})
        assert got.json()["error"]["code"] == "context_length_exceeded"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 3}, "input"),
    ({"input": ["x"]}, "input[0]"),
    ({"input": [{}]}, "input[0]"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [3]}]}, "input[0].content[0]"),
    (
        {"input": [USER, {"role": "user", "content": [{"type": "input_image"}]}]},
        "input[1].content[0]",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        "input[0].content[0].text",
    ),
    ({"input": [{"type": "computer_call"}]}, "input[0]"),
    ({"input": [{"type": ["message"]}]}, "input[0]"),
    ({"input": [call(arguments={})]}, "input[0].arguments"),
    ({"input": [call(name=None)]}, "input[0].name"),
    ({"input": [call(namespace=3)]}, "input[0].namespace"),
    ({"input": [result(None)]}, "input[0].output"),
    ({"input": [result([{"type": "input_file"}])]}, "input[0].output[0]"),
    ({"input": [{"type": "reasoning", "content": 3}]}, "input[0].content"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id"),
    ({"background": True}, "background"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"conversation": "c"}, "conversation"),
    ({"n": 2}, "n"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"truncation": "some"}, "truncation"),
    ({"metadata": {"a": 1}}, "metadata[...]"),
    ({"include": "x"}, "include"),
    ({"tools": [GO | {"name": ""}]}, "tools[0].name"),
    ({"tools": [GO | {"parameters": 3}]}, "tools[0].parameters"),
    ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [3]}]}, "tools[0].tools[0]"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "no"}, "tools": [GO]}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice"),
    (
        {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [3]}},
        "tool_choice",
    ),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "xml"}}}, "text.format"),
    (
        {"text": {"format": {"type": "text"}}, "response_format": {"type": "text"}},
        "response_format",
    ),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: str(value)[:60])
async def test_what_makes_no_sense_is_refused(
    server: Server, fields: dict[str, Any], param: str
) -> None:
    async with server.client() as client:
        for streamed in (False, True):
            body = {"input": "hi", "stream": streamed} | fields
            got = await client.post(RESPONSES, json=body)
            assert got.status_code == 400, got.text
            assert got.json()["error"]["param"] == param
    assert not server.scheduler.submits


async def test_an_unknown_model(server: Server) -> None:
    async with server.client() as client:
        got = await client.post(RESPONSES, json={"input": "x", "model": "other"})
        assert (got.status_code, got.json()["error"]["code"]) == (404, "model_not_found")
        assert (await client.post(f"{RESPONSES}/compact", json={})).status_code == 404
