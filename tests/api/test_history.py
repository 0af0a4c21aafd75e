"""Answers that come back in a later prompt, however written: the tokens that were generated."""

import asyncio
import gc
import json
from collections.abc import Callable

import pytest

from radixserve.messages import Drain, unpack
from tests.api.fakes import Server, stats
from tests.api.remembering import (
    ANSWERS,
    CALL,
    DROPS_CONTENT,
    EMPTY_THOUGHTS,
    KEEPS,
    STRIPS,
    Message,
    prompt,
    said,
    settled,
    two_turns,
)
from tests.api.sending import CHAT, COUNT, answer
from tests.tokenizer import folders

pytestmark = pytest.mark.anyio


def as_it_is(message: Message) -> Message:
    return message


def reserialised(message: Message) -> Message:
    """As LangChain and others send it."""
    calls = [
        call | {"function": {**call["function"], "arguments": spaced(call)}}
        for call in message.get("tool_calls") or ()
    ]
    return message | ({"tool_calls": calls} if calls else {})


def spaced(call: Message) -> str:
    return json.dumps(json.loads(call["function"]["arguments"]), indent=1, sort_keys=True)


def without_reasoning(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def with_empty_reasoning(message: Message) -> Message:
    return message | {"reasoning_content": ""}


def in_parts(message: Message) -> Message:
    return message | {"content": [{"type": "text", "text": message["content"] or ""}]}


def stripped(message: Message) -> Message:
    return message | {"content": (message["content"] or "").strip()}


def by_its_other_name(message: Message) -> Message:
    thoughts = message.get("reasoning_content")
    return without_reasoning(message) | ({"reasoning": thoughts} if thoughts else {})


def other_ids(message: Message) -> Message:
    calls = [call | {"id": "other"} for call in message.get("tool_calls") or ()]
    return message | ({"tool_calls": calls} if calls else {})


CHANGES = [
    as_it_is,
    reserialised,
    without_reasoning,
    with_empty_reasoning,
    in_parts,
    stripped,
    by_its_other_name,
    other_ids,
]


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_a_turn_is_its_own_tokens(
    kind: str, change: Callable[[Message], Message], serve: Callable[..., Server]
) -> None:
    server = serve()
    first, ids, second = await two_turns(server, ANSWERS[kind], change)
    assert second[: len(first) + len(ids) + 1] == [*first, *ids, folders.IM_END]
    assert not server.scheduler.ahead


@pytest.mark.parametrize("kind", ANSWERS)
async def test_without_the_flag_a_turn_is_encoded(kind: str, serve: Callable[..., Server]) -> None:
    server = serve(history_tokens=0)
    first, ids, second = await two_turns(server, ANSWERS[kind], without_reasoning)
    assert second[: len(first) + len(ids)] != [*first, *ids]


def changed_content(message: Message) -> Message:
    return message | {"content": "three"}


def changed_reasoning(message: Message) -> Message:
    return message | {"reasoning_content": "oh"}


def changed_call(message: Message) -> Message:
    (call,) = message["tool_calls"]
    function = {**call["function"], "arguments": '{"b": 2, "a": [2]}'}
    return message | {"tool_calls": [call | {"function": function}]}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("text", changed_content),
        ("thoughts", changed_content),
        ("thoughts", changed_reasoning),
        ("call", changed_call),
    ],
)
async def test_what_was_not_said_is_encoded(
    kind: str, change: Callable[[Message], Message], serve: Callable[..., Server]
) -> None:
    first, ids, second = await two_turns(server := serve(), ANSWERS[kind], change)
    assert second[: len(first)] == first
    assert second[len(first) : len(first) + len(ids)] != ids
    if change is changed_reasoning:
        assert "oh" in server.prompt and "hm" not in server.prompt


async def test_what_a_template_leaves_out_stays_out(serve: Callable[..., Server]) -> None:
    """Its content behind a call: the answer's tokens would bring it back."""
    server = serve(DROPS_CONTENT)
    await two_turns(server, f"a{CALL}", as_it_is)
    assert "\na<tool_call>" not in server.prompt


@pytest.mark.parametrize(("source", "kind"), [(STRIPS, "thoughts"), (EMPTY_THOUGHTS, "text")])
async def test_a_stripped_branch_is_computed_ahead(
    source: str, kind: str, serve: Callable[..., Server]
) -> None:
    server = serve(source)
    first, _, second = await two_turns(server, ANSWERS[kind], as_it_is)
    tokens = unpack(server.scheduler.ahead[0].prompt)
    assert second[: len(tokens)] == tokens
    text = b"".join(server.front.vocabulary.token_bytes(i) for i in tokens).decode()
    assert text.endswith("<|im_end|>\n<|im_start|>user\n") and "think" not in text
    assert len(tokens) > len(first) - 4  # of the header with empty thoughts
    assert all(s.max_tokens == 1 and s.priority < 0 for s in server.scheduler.ahead)
    async with server.client() as client:
        metrics = (await client.get("/metrics")).text
    computed = sum(len(unpack(submit.prompt)) for submit in server.scheduler.ahead)
    assert f"radixserve_ahead_tokens_total {computed}.0" in metrics
    assert f"radixserve_prompt_tokens_total {len(first) + len(second)}.0" in metrics


async def test_nothing_is_computed_ahead_while_requests_wait(serve: Callable[..., Server]) -> None:
    server = serve(STRIPS)
    server.engine.deliver([stats(waiting=1)])
    await two_turns(server, ANSWERS["thoughts"], as_it_is)
    assert not server.scheduler.ahead


async def test_what_is_computed_ahead_does_not_hold_up_the_end(
    serve: Callable[..., Server],
) -> None:
    server = serve(STRIPS)
    said(server, ANSWERS["thoughts"])
    async with server.client() as client:
        server.scheduler.aheads_pause = 60.0
        await answer(client, CHAT, messages=[{"role": "user", "content": "hi"}])
        while not server.scheduler.ahead:
            await asyncio.sleep(0.01)
        server.engine.deliver([Drain()])
        await asyncio.wait_for(settled(server), 10)
    assert server.engine.drained


async def test_an_end_while_the_next_beginning_is_made_is_no_fault(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(STRIPS)
    said(server, ANSWERS["thoughts"])
    in_thread, faults = server.front.in_thread, list[object]()

    async def ending(work: Callable[[], object]) -> object:
        if server.scheduler.finished:
            server.engine.stop("gone")
        return await in_thread(work)

    monkeypatch.setattr(server.front, "in_thread", ending)
    asyncio.get_running_loop().set_exception_handler(lambda _, told: faults.append(told))
    async with server.client() as client:
        await answer(client, CHAT, messages=[{"role": "user", "content": "hi"}])
        await settled(server)
    gc.collect()  # a task's fault is told when it goes
    assert server.engine.stopped and not faults and not server.scheduler.ahead


async def test_text_that_changed_before_an_answer_stands(serve: Callable[..., Server]) -> None:
    """A template that prints the first answer anew, in as many characters, two turns later."""
    late = "{% if messages | length > 3 and loop.index == 2 %}{{ m.content | upper }}{% else %}"
    server = serve(KEEPS.replace("{{ m.content | trim }}", late + "{{ m.content }}{% endif %}"))
    messages: list[Message] = []
    async with server.client() as client:
        for turn in range(3):
            said(server, f"a word {turn}")
            messages.append({"role": "user", "content": "q"})
            await answer(client, CHAT, messages=messages)
            await settled(server)
            messages.append({"role": "assistant", "content": f"a word {turn}"})
    assert "A WORD 0" in server.prompt and "a word 0" not in server.prompt


async def test_salts_do_not_share_thoughts(serve: Callable[..., Server]) -> None:
    server = serve()
    said(server, ANSWERS["thoughts"])
    hi = {"role": "user", "content": "hi"}
    history = [hi, {"role": "assistant", "content": "one"}, hi]
    async with server.client() as client:
        await answer(client, CHAT, messages=[hi], cache_salt="a")
        await answer(client, CHAT, messages=history, cache_salt="b")
        other = server.prompt
        await answer(client, CHAT, messages=history, cache_salt="a")
        for route, told in ((COUNT, "input_tokens"), ("/tokenize", "count")):
            fields = {"messages": history, "cache_salt": "a"}
            response = await client.post(route, json=fields)
            assert response.json()[told] == len(prompt(server))
    assert "hm, so" not in other and "hm, so" in server.prompt


async def test_long_conversations_and_branches(serve: Callable[..., Server]) -> None:
    """Each turn goes on from all before it; a branch from where it leaves."""
    server = serve()
    messages: list[Message] = []
    prompts: list[list[int]] = []
    async with server.client() as client:
        for turn in range(4):
            ids = said(server, f"<think>t{turn}</think>a{turn}")
            messages.append({"role": "user", "content": f"q{turn}"})
            await answer(client, CHAT, messages=messages, max_tokens=40)
            assert not prompts or prompt(server)[: len(prompts[-1])] == prompts[-1]
            prompts.append([*prompt(server), *ids, folders.IM_END])
            messages.append({"role": "assistant", "content": f"a{turn}"})
        branch = [*messages[:4], {"role": "user", "content": "other"}]
        await answer(client, CHAT, messages=branch, max_tokens=40)
    assert prompt(server)[: len(prompts[1])] == prompts[1]


@pytest.mark.parametrize("text", ["one two three", "<think>hm, so it is</think>one two"])
async def test_an_answer_that_a_limit_cut(text: str, serve: Callable[..., Server]) -> None:
    first, ids, second = await two_turns(serve(), text, without_reasoning, max_tokens=len(text) - 2)
    assert second[: len(first) + len(ids) - 2] == [*first, *ids[:-2]]


async def test_an_answer_that_a_stop_string_cut_is_encoded(serve: Callable[..., Server]) -> None:
    server = serve()
    await two_turns(server, "one STOP", as_it_is, stop="STOP")
    assert "STO" not in server.prompt


async def test_reasoning_gives_way_where_there_is_no_room(serve: Callable[..., Server]) -> None:
    server = serve()
    thoughts = "hm " * 40
    hi = {"role": "user", "content": "hi"}
    said(server, f"<think>{thoughts}</think>one")
    history = [hi, {"role": "assistant", "content": "one"}, {"role": "user", "content": "a " * 60}]
    async with server.client() as client:
        await answer(client, CHAT, messages=[hi])
        await answer(client, CHAT, messages=history, max_tokens=1)
        counted = await answer(client, COUNT, messages=history)
    assert "hm" not in server.prompt and len(prompt(server)) < 256
    assert counted["input_tokens"] == len(prompt(server))
