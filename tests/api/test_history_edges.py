"""Answers whose tokens are not what their client heard, and prompts that are to stay as sent."""

import hashlib
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from radixserve.api.history import keys
from tests.api.fakes import READY, Server
from tests.api.remembering import CALL, GO, KEEPS, Message, in_letters
from tests.api.sending import CHAT, answer
from tests.tokenizer import folders

pytestmark = pytest.mark.anyio

HI: Message = {"role": "user", "content": "hi"}


async def second_prompt(server: Server, tokens: list[int], **fields: object) -> str:
    """The prompt of the turn behind an answer of these tokens, which comes back as it was sent."""
    server.say(tokens)
    async with server.client() as client:
        whole = await answer(client, CHAT, messages=[HI], tools=[GO], **fields)
        message = whole["choices"][0]["message"]
        await answer(client, CHAT, messages=[HI, message, HI], tools=[GO], max_tokens=1)
    return server.prompt


@pytest.mark.parametrize(
    "begun", ["<tool_call>", '<tool_call>\n{"na', '<tool_call>\n{"name": "go", "argu']
)
async def test_a_call_that_a_limit_cut_stays_unsaid(
    begun: str, serve: Callable[..., Server]
) -> None:
    server = serve()
    tokens = in_letters(server, f"one {begun}")
    assert "one<|im_end|>" in await second_prompt(server, tokens, max_tokens=len(tokens))


async def test_a_stop_token_that_is_part_of_the_answer_stays(
    serve: Callable[..., Server],
) -> None:
    server = serve()
    tokens = in_letters(server, "one two!")
    options = {"stop_token_ids": tokens[-1:], "include_stop_str_in_output": True}
    assert "one two!<|im_end|>" in await second_prompt(server, tokens, **options)


async def test_a_mark_without_text_in_an_answer_stays_out(serve: Callable[..., Server]) -> None:
    server = serve()
    mark = server.front.vocabulary.special_tokens["<|im_start|>"]
    tokens = [*in_letters(server, "one "), mark, *in_letters(server, "two"), folders.IM_END]
    assert "one two<|im_end|>" in await second_prompt(server, tokens)


@pytest.mark.parametrize("said", ["one two \n", "<think>hm</think>one two \n"])
async def test_a_known_answer_goes_on_from_where_its_client_cut_it(
    said: str, serve: Callable[..., Server]
) -> None:
    server = serve()
    server.say([*in_letters(server, said), folders.IM_END])
    begun = {"role": "assistant", "content": "one two"}
    async with server.client() as client:
        await answer(client, CHAT, messages=[HI])
        options = {"continue_final_message": True, "add_generation_prompt": False}
        await answer(client, CHAT, messages=[HI, begun], **options)
    assert server.prompt.endswith("one two")


async def test_ids_of_calls_that_a_template_prints_stay(serve: Callable[..., Server]) -> None:
    """A model tells by them which result is of which call."""
    source = KEEPS.replace('{"name"', '{"id": "{{ c.id }}", "name"')
    server = serve(source.replace("{{ m.role }}", "{{ m.role }}{{ m.tool_call_id or '' }}"))
    server.say([*in_letters(server, CALL), folders.IM_END])
    async with server.client() as client:
        whole = await answer(client, CHAT, messages=[HI], tools=[GO])
        message = whole["choices"][0]["message"]
        name = message["tool_calls"][0]["id"]
        result = {"role": "tool", "content": "ok", "tool_call_id": name}
        await answer(client, CHAT, messages=[HI, message, result], tools=[GO], max_tokens=1)
    assert server.prompt.count(name) == 2


@pytest.mark.parametrize(("most", "whole"), [(-1, True), (100, True), (30, False)])
async def test_a_prompt_that_may_be_cut_and_is_not_remembers(
    most: int, whole: bool, serve: Callable[..., Server]
) -> None:
    server = serve()
    server.say([*in_letters(server, "<think>hm</think>one"), folders.IM_END])
    messages = [HI, {"role": "assistant", "content": "one"}, HI]
    async with server.client() as client:
        await answer(client, CHAT, messages=[HI])
        size = server.front.splicer.store.size  # type: ignore[union-attr]
        await answer(client, CHAT, messages=messages, truncate_prompt_tokens=most)
    assert ("hm" in server.prompt) is whole
    assert (server.front.splicer.store.size > size) is whole  # type: ignore[union-attr]


NO_THOUGHTS = KEEPS.replace(
    "{% for m in messages %}",
    "{% for m in messages %}{% if m.reasoning_content %}{{ raise_exception('no') }}{% endif %}",
)
NO_PARTS = KEEPS.replace(
    "{% for m in messages %}",
    "{% if messages | length > 2 and not add_generation_prompt %}{{ raise_exception('no') }}"
    "{% endif %}{% for m in messages %}",
)


@pytest.mark.parametrize("source", [NO_THOUGHTS, NO_PARTS])
async def test_a_template_that_refuses_what_was_not_sent(
    source: str, serve: Callable[..., Server]
) -> None:
    server = serve(source)
    server.say([*in_letters(server, "<think>hm</think> one "), folders.IM_END])
    async with server.client() as client:
        await answer(client, CHAT, messages=[HI])
        await answer(client, CHAT, messages=[HI, {"role": "assistant", "content": "one"}, HI])
    assert "one<|im_end|>" in server.prompt


async def test_a_long_conversation_is_looked_at_once(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no prompt begins as an earlier one did, each turn's place was hashed from the start."""
    server = serve(KEEPS.replace("{% for m in", "{{ messages | length }}{% for m in", 1))
    server.engine.deliver([replace(READY, context_length=9999, max_total_tokens=9999)])
    server.say([*in_letters(server, "one"), folders.IM_END])
    hashed: list[int] = []

    class Counting:
        def __init__(self, data: bytes = b"", *, digest_size: int) -> None:
            self._hash = hashlib.blake2b(digest_size=digest_size)
            self.update(data)

        def update(self, data: bytes) -> None:
            hashed.append(len(data))
            self._hash.update(data)

        def digest(self) -> bytes:
            return self._hash.digest()

    monkeypatch.setattr(keys, "blake2b", Counting)
    messages: list[Message] = []
    sums: list[int] = []
    async with server.client() as client:
        for turn in range(40):
            messages.append({"role": "user", "content": f"q{turn}"})
            hashed.clear()
            await answer(client, CHAT, messages=messages, max_tokens=9)
            sums.append(sum(hashed))
            messages.append({"role": "assistant", "content": "one"})
    keyed = 200 * len(messages)
    # what is kept of an answer is hashed behind it, sometimes while the next one is asked for
    assert min(sums[-5:]) < 3 * len(server.prompt) + keyed
