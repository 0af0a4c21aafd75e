"""The prompts of Anthropic's turns, system prompts and tools."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.fakes import Server
from tests.api.sending import CHAT, COUNT, MESSAGES, answer, fault_of, post
from tests.tokenizer import folders

pytestmark = pytest.mark.anyio
NONCE = "x-anthropic-billing-header: cc_version=2.1.197.636; cc_entrypoint=cli;"
TALKS = (  # prints what our own templates leave out
    "{% for m in messages %}[{{ m.role }}|{{ m.content }}"
    "{% if m.reasoning_content %}|think {{ m.reasoning_content }}{% endif %}"
    "{% for c in m.tool_calls %}|{{ c.id }} {{ c.function.name }}"
    " {{ c.function.arguments | tojson }}{% endfor %}"
    "{% if m.tool_call_id %}|of {{ m.tool_call_id }}{% endif %}]{% endfor %}"
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{{ enable_thinking }},{{ thinking }},{{ reasoning_effort }}"
)
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "[{{ m.role }}|{{ m.content }}]{% endfor %}"
)
DROPS_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    "[{{ m.role }}|{{ m.content }}]{% endif %}{% endfor %}"
)


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def use(id: str, name: str, **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def result(id: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id} | more


def templated(folder: Path, tmp_path: Path, source: str, **config: Any) -> Server:
    path = tmp_path / "template.jinja"
    path.write_text(source)
    return Server(folder, chat_template=str(path), **config)


async def prompt_of(server: Server, messages: Any, **fields: Any) -> str:
    async with server.client() as client:
        await answer(client, MESSAGES, messages=messages, **fields)
        counted = await answer(client, COUNT, messages=messages, **fields)
    assert counted["input_tokens"] == len(server.scheduler.submits[-1].prompt) // 4
    return server.prompt


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Server:
    return templated(folder, tmp_path, TALKS)


HI = [turn("user", "hi")]
TURNS: list[tuple[list[dict[str, Any]], str]] = [
    ([turn("user", text("a", "b"))], "[user|a\nb]"),
    (
        [turn("user", "a"), turn("assistant", text("b", "c")), turn("user", "d")],
        "[user|a][assistant|bc][user|d]",
    ),
    ([turn("user", "a"), turn("user", text("b"))], "[user|a\nb]"),
    ([turn("system", "s"), turn("user", "a")], "[system|s][user|a]"),
    (
        [turn("user", "a"), turn("system", text("s")), turn("user", "b")],
        "[user|a][system|s][user|b]",
    ),
    ([turn("user", [])], "[user|]"),
    (
        [
            turn("user", "a"),
            turn(
                "assistant",
                [
                    {"type": "thinking", "thinking": "Hm", "signature": "x"},
                    {"type": "redacted_thinking", "data": "zz"},
                    *text("b"),
                    use("1", "go", to="x"),
                    use("2", "stop"),
                ],
            ),
            turn(
                "user",
                [
                    result("1", content="ok"),
                    result("2", content=text("c", "d"), is_error=True),
                    result("3"),
                    *text("e"),
                ],
            ),
            turn("user", "f"),
        ],
        '[user|a][assistant|b|think Hm|1 go {"to": "x"}|2 stop {}]'
        "[tool|ok|of 1][tool|c\nd|of 2][tool||of 3][user|e\nf]",
    ),
    (
        [
            turn("user", "a"),
            turn("assistant", [use("1", "go")]),
            turn("user", [*text("b"), result("1", content="c")]),
        ],
        "[user|a][assistant||1 go {}][user|b][tool|c|of 1]",
    ),
]


@pytest.mark.parametrize(("messages", "said"), TURNS, ids=lambda value: str(value)[:30])
async def test_turns(server: Server, messages: list[dict[str, Any]], said: str) -> None:
    assert await prompt_of(server, messages) == f"{said},,"


async def test_system_prompts(server: Server) -> None:
    for system in ("s\nt", text("s", "t")):
        assert await prompt_of(server, HI, system=system) == "[system|s\nt][user|hi],,"
    early = [turn("system", "t"), *HI]
    assert await prompt_of(server, early, system="s") == "[system|s\nt][user|hi],,"
    assert await prompt_of(server, HI, system=[]) == "[user|hi],,"


async def test_known_nonces_are_dropped(folder: Path, tmp_path: Path) -> None:
    server = templated(folder, tmp_path, TALKS)
    keeping = templated(folder, tmp_path, TALKS, keep_known_nonces=True)
    for system in (text(NONCE, "s"), f"{NONCE}\ns", text(f"{NONCE}\ns")):
        assert await prompt_of(server, HI, system=system) == "[system|s][user|hi],,"
        assert NONCE in await prompt_of(keeping, HI, system=system)
    assert await prompt_of(server, HI, system=text(NONCE)) == "[user|hi],,"
    quoted = f"Never say {NONCE}"
    assert quoted in await prompt_of(server, HI, system=quoted)


@pytest.mark.parametrize("source", [SYSTEM_FIRST, DROPS_SYSTEM])
async def test_a_late_system_message_is_never_lost(
    folder: Path, tmp_path: Path, source: str
) -> None:
    server = templated(folder, tmp_path, source)
    late = [turn("user", "a"), turn("system", "s"), turn("assistant", "b"), turn("system", "t")]
    said = "[system|r][user|a\ns][assistant|b][user|t]"
    assert await prompt_of(server, late, system="r") == said


async def test_an_assistants_turn_at_the_end_goes_on(folder: Path) -> None:
    server = Server(folder, " there")
    async with server.client() as client:
        asked = [turn("user", "hi"), turn("assistant", text("Hello"))]
        message = await answer(client, MESSAGES, messages=asked)
    assert server.prompt.endswith("<|im_start|>assistant\nHello")
    assert message["content"][0]["text"] == " there"


async def test_tools(server: Server) -> None:
    tool = {"name": "go", "description": "Goes.", "input_schema": {"type": "object"}}
    prompt = await prompt_of(server, HI, tools=[tool], tool_choice={"type": "auto"})
    assert prompt == (
        '[user|hi]{"type": "function", "function": {"name": "go", "description": "Goes.",'
        ' "parameters": {"type": "object"}}},,'
    )


VARIABLES: list[tuple[dict[str, Any], str]] = [
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "True,True,"),
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, "True,True,"),
    ({"thinking": {"type": "disabled"}}, "False,False,"),
    ({"output_config": {"effort": "high"}}, ",,high"),
    (
        {
            "thinking": {"type": "enabled"},
            "output_config": {"effort": "high"},
            "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"},
        },
        "False,True,low",
    ),
]


@pytest.mark.parametrize(("fields", "said"), VARIABLES, ids=lambda value: str(value)[:40])
async def test_variables_of_the_template(server: Server, fields: dict[str, Any], said: str) -> None:
    assert await prompt_of(server, HI, **fields) == f"[user|hi]{said}"


async def test_the_prompt_is_that_of_chat(folder: Path) -> None:
    server = Server(folder)
    call = {"type": "function", "function": {"name": "go", "arguments": '{"to":"x"}'}, "id": "1"}
    chat = [
        turn("system", "s"),
        *HI,
        turn("assistant", None) | {"tool_calls": [call]},
        turn("tool", "ok") | {"tool_call_id": "1"},
    ]
    async with server.client() as client:
        await answer(client, CHAT, messages=chat)
    theirs = [
        *HI,
        turn("assistant", [use("1", "go", to="x")]),
        turn("user", [result("1", content="ok")]),
    ]
    assert await prompt_of(server, theirs, system="s") == server.prompt
    prompts = {bytes(submit.prompt) for submit in server.scheduler.submits}
    assert len(prompts) == 1


WRONG: list[tuple[Any, str]] = [
    ([turn("user", [{"type": "image", "source": {}}])], "messages[0].content[0] is of type image"),
    ([turn("user", [*text("a"), {"type": "document"}])], "messages[0].content[1] is of type doc"),
    ([turn("user", [{"type": 3}])], "messages[0].content[0] is of type 3"),
    ([turn("user", [{}])], "messages[0].content[0] is of type null"),
    ([turn("user", [{"type": []}])], "messages[0].content[0]"),
    ([turn("user", [use("1", "go")])], "messages[0].content[0] is of type tool_use"),
    ([turn("user", [result("1", content=[{"type": "image"}])])], "content[0].content[0] is of typ"),
    ([turn("user", [{"type": "text", "text": 3}])], "messages[0].content[0].text"),
    ([turn("user", [{"type": "text"}])], "messages[0].content[0]"),
    ([turn("user", [{"type": "tool_result"}])], "messages[0].content[0]"),
    ([turn("user", "a"), turn("assistant", [use("1", "go")])], "messages[1]"),
    ([turn("user", "a"), turn("assistant", [use("1", "go") | {"input": "x"}])], "content[0].input"),
    ([turn("user", "a"), turn("assistant", [result("1")])], "messages[1].content[0]"),
    ([turn("tool", "a")], "messages[0].role"),
    ([turn("user", None)], "messages[0].content"),
    (["x"], "messages[0]"),
]


@pytest.mark.parametrize(("messages", "said"), WRONG, ids=lambda value: str(value)[:60])
async def test_what_cannot_be_read_is_named(server: Server, messages: Any, said: str) -> None:
    async with server.client() as client:
        for route in (MESSAGES, COUNT):
            got = await post(client, route, messages=messages)
            assert got.status_code == 400, got.text
            assert said in fault_of(route, got)["message"]
    assert not server.scheduler.submits


async def test_without_a_template(tmp_path: Path) -> None:
    server = Server(folders.byte_level(tmp_path, template=None))
    async with server.client() as client:
        got = await post(client, MESSAGES)
    assert got.status_code == 400 and "no chat template" in fault_of(MESSAGES, got)["message"]
