"""Token-exact history behind every surface, other vocabularies, and its bound."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.fakes import Server
from tests.api.remembering import ANSWERS, Message, in_letters, prompt, said, settled
from tests.api.sending import CHAT, COUNT, MESSAGES, answer
from tests.tokenizer import folders

pytestmark = pytest.mark.anyio


async def test_a_last_message_that_goes_on_leaves_earlier_ones_whole(
    serve: Callable[..., Server],
) -> None:
    server = serve()
    ids = said(server, ANSWERS["thoughts"])
    hi: Message = {"role": "user", "content": "hi"}
    begun = {"role": "assistant", "content": "And so"}
    async with server.client() as client:
        await answer(client, CHAT, messages=[hi])
        first = prompt(server)
        messages = [hi, {"role": "assistant", "content": "one"}, hi, begun]
        options = {"continue_final_message": True, "add_generation_prompt": False}
        await answer(client, CHAT, messages=messages, **options)
    assert prompt(server)[: len(first) + len(ids)] == [*first, *ids]
    assert server.prompt.endswith("And so")


async def test_sentencepiece_spaces(tmp_path: Path) -> None:
    """As Llama 2: words begin with a space that texts do not have; no header, no line breaks."""
    folder = folders.sentencepiece(tmp_path)
    path = tmp_path / "template.jinja"
    path.write_text(
        "{% for m in messages %}{% if m.role == 'user' %}<|im_start|> {{ m.content }} <s>"
        "{% else %} {{ m.content | trim }} <|im_end|>{% endif %}{% endfor %}"
    )
    server = Server(folder, chat_template=str(path))
    vocabulary = server.front.vocabulary
    hi: Message = {"role": "user", "content": "own fox"}
    words = vocabulary.encode("Stop here", add_special_tokens=False)
    server.say([*words, *vocabulary.eos_ids])
    async with server.client() as client:
        whole = await answer(client, CHAT, messages=[hi])
        first = prompt(server)
        await settled(server)
        message = whole["choices"][0]["message"]
        assert message["content"] == "Stop here"
        await answer(client, CHAT, messages=[hi, message, hi])
    end = vocabulary.special_tokens["<|im_end|>"]
    assert prompt(server) == [*first, *words, end, *first[1:]]


async def test_anthropic_turns(serve: Callable[..., Server]) -> None:
    """A block of text alone, a marker that moves, a header that differs."""
    server = serve()
    ids = said(server, ANSWERS["thoughts"])
    turns: list[Message] = [{"role": "user", "content": "hi"}]
    async with server.client() as client:
        for nonce, mark in (("1", 0), ("2", 2)):
            first = prompt(server) if server.scheduler.submits else []
            marked = [
                turn | {"content": [text(turn["content"], marked=i == mark)]}
                for i, turn in enumerate(turns)
            ]
            system = [text(f"x-anthropic-billing-header: cc_version={nonce}"), text("s")]
            fields = {"messages": marked, "system": system}
            whole = await answer(client, MESSAGES, **fields)
            counted = await answer(client, COUNT, **fields)
            assert counted["input_tokens"] == len(prompt(server))
            said_text = [b["text"] for b in whole["content"] if b["type"] == "text"]
            turns += [
                {"role": "assistant", "content": said_text[0]},
                {"role": "user", "content": "x"},
            ]
    assert prompt(server)[: len(first) + len(ids)] == [*first, *ids]


def text(content: str, *, marked: bool = False) -> Message:
    block: Message = {"type": "text", "text": content}
    return block | ({"cache_control": {"type": "ephemeral"}} if marked else {})


async def test_stored_responses_and_items_with_other_ids(serve: Callable[..., Server]) -> None:
    server = serve()
    ids = said(server, ANSWERS["call"])
    tool = {"type": "function", "name": "go", "parameters": None}
    route = "/v1/responses"
    async with server.client() as client:
        one = (await client.post(route, json={"input": "hi", "tools": [tool]})).json()
        first = prompt(server)
        (call,) = one["output"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
        goes_on = {"input": [result], "previous_response_id": one["id"]}
        anew = {
            "input": [
                {"type": "message", "role": "user", "content": "hi", "id": "msg_other"},
                call | {"id": "fc_other", "arguments": '{"a": [2], "b": 1}'},
                result | {"id": "fco_other"},
            ]
        }
        for fields in (goes_on, anew):
            response = await client.post(route, json=fields | {"tools": [tool]})
            assert response.status_code == 200, response.text
            assert prompt(server)[: len(first) + len(ids)] == [*first, *ids]


async def test_answers_are_forgotten_by_use(serve: Callable[..., Server]) -> None:
    server = serve(history_tokens=3 * 140)
    said(server, "one two")
    store = server.front.splicer.store  # type: ignore[union-attr]
    async with server.client() as client:
        for turn in range(6):
            messages = [{"role": "user", "content": str(turn)}]
            await answer(client, CHAT, messages=messages)
            assert store.size <= 3 * 140
        messages = [{"role": "user", "content": "0"}, {"role": "assistant", "content": "one two"}]
        await answer(client, CHAT, messages=[*messages, messages[0]])
    assert in_letters(server, "one two") != prompt(server)[-20:]
    assert len(store._turns) == 3
