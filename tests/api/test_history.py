"""Answers that come back in a later prompt, however written: the tokens that were generated."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixserve.messages import unpack
from tests.api.fakes import Server, stats
from tests.api.sending import CHAT, COUNT, MESSAGES, answer
from tests.tokenizer import folders

pytestmark = pytest.mark.anyio

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


@pytest.fixture
def serve(folder: Path, tmp_path: Path) -> Callable[..., Server]:
    def made(source: str = KEEPS, **config: Any) -> Server:
        path = tmp_path / "template.jinja"
        path.write_text(source)
        return Server(folder, chat_template=str(path), **{"tool_call_parser": "hermes"} | config)

    return made


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
    assert "hm" not in server.prompt and len(prompt(server)) < 256


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
