"""Templates, answers and turns for tests of token-exact history."""

import asyncio
from collections.abc import Callable
from typing import Any

from radixserve.messages import unpack
from tests.api.fakes import Server
from tests.api.sending import CHAT, answer
from tests.tokenizer import folders

Message = dict[str, Any]
GO: Message = {"type": "function", "function": {"name": "go"}}
CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}"
)
THOUGHTS = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}"
HEADER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def template(thoughts: str, header: str = HEADER) -> str:
    return (
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        f"{thoughts}{{{{ m.content | trim }}}}{CALLS}<|im_end|>\n{{% endfor %}}{header}"
    )


KEEPS = template(THOUGHTS)
STRIPS = template("{% if loop.last %}" + THOUGHTS + "{% endif %}")
EMPTY_THOUGHTS = template("", HEADER.replace("assistant\n", "assistant\n<think>\n\n</think>\n\n"))
DROPS_CONTENT = KEEPS.replace("{{ m.content", "{{ '' if m.tool_calls else m.content")
CALL = '<tool_call>{"name": "go", "arguments": {}}</tool_call>'
ANSWERS = {
    "text": "one two",
    "spaces": "one two \n",
    "call": '<tool_call>{"name":"go","arguments":{"b":1,"a":[2]}}</tool_call>',
    "thoughts": "<think>hm, so</think>one",
    "thoughts and a call": f"<think>hm</think>a{CALL}",
}


def in_letters(server: Server, text: str) -> list[int]:
    """Tokens of a text that encoding it would not give: one for each byte."""
    of_byte = {server.front.vocabulary.token_bytes(i): i for i in range(400)}
    return [of_byte[bytes([byte])] for byte in text.encode()]


def said(server: Server, answer: str) -> list[int]:
    ids = in_letters(server, answer)
    assert ids != server.front.vocabulary.encode(answer, add_special_tokens=False)
    server.say([*ids, folders.IM_END])
    return ids


async def settled(server: Server) -> None:
    """When nothing runs in the background."""
    while server.front._tasks:
        await asyncio.sleep(0.01)


def prompt(server: Server) -> list[int]:
    return unpack(server.scheduler.submits[-1].prompt)


async def two_turns(
    server: Server, text: str, change: Callable[[Message], Message], **fields: Any
) -> tuple[list[int], list[int], list[int]]:
    """The first prompt, its answer, and the second prompt, in tokens."""
    ids = said(server, text)
    messages: list[Message] = [{"role": "user", "content": "hi"}]
    async with server.client() as client:
        whole = await answer(client, CHAT, messages=messages, tools=[GO], **fields)
        first = prompt(server)
        await settled(server)
        message = change(whole["choices"][0]["message"])
        behind = {"role": "user", "content": "and?"}
        if message.get("tool_calls"):
            behind = {"role": "tool", "content": "ok", "tool_call_id": "1"}
        await answer(client, CHAT, messages=[*messages, message, behind], tools=[GO], **fields)
        await settled(server)
    return first, ids, prompt(server)
