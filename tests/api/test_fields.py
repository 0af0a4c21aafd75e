"""Fields that change a prompt's tokens, an answer's text or its choice, on both routes."""

from pathlib import Path
from typing import Any

import pytest

from radixserve.api.fields import BAN
from radixserve.messages import unpack
from tests.api.fakes import Server
from tests.api.sending import CHAT, COMPLETIONS, answer, post, stream, text_of
from tests.tokenizer import folders

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("route", [CHAT, COMPLETIONS])


async def said(server: Server, route: str, **fields: Any) -> str:
    """The text of an answer, the same streamed and whole."""
    async with server.client() as client:
        (choice,) = (await answer(client, route, **fields))["choices"]
        chunks = await stream(client, route, **fields)
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    assert text_of(chunks) == text
    return text


@both
@pytest.mark.parametrize("per_message", [1, 100])
async def test_what_ended_the_answer_is_part_of_it_on_demand(
    folder: Path, route: str, per_message: int
) -> None:
    server = Server(folder, "one two three")
    server.scheduler.per_message = per_message
    (x,) = server.front.vocabulary.encode(" ")
    assert await said(server, route, stop="two") == "one "
    assert await said(server, route, stop="two", include_stop_str_in_output=True) == "one two"
    assert await said(server, route, include_stop_str_in_output=True) == "one two three"
    server.say([*server.front.vocabulary.encode("ab"), x])
    assert await said(server, route, stop_token_ids=[x]) == "ab"
    assert await said(server, route, stop_token_ids=[x], include_stop_str_in_output=True) == "ab "


@both
async def test_special_tokens_are_shown_on_demand(folder: Path, route: str) -> None:
    server = Server(folder)
    vocabulary = server.front.vocabulary
    server.say([*vocabulary.encode("a"), folders.IM_START, *vocabulary.encode("b"), folders.IM_END])
    assert await said(server, route) == "ab"
    assert await said(server, route, skip_special_tokens=False) == "a<|im_start|>b"
    both = {"skip_special_tokens": False, "include_stop_str_in_output": True}
    assert await said(server, route, **both) == "a<|im_start|>b<|im_end|>"
    assert await said(server, route, skip_special_tokens=False, stop="start|>") == "a<|im_"


async def test_logprobs_of_shown_special_tokens_join_to_the_text(folder: Path) -> None:
    server = Server(folder)
    vocabulary = server.front.vocabulary
    server.say([folders.IM_START, *vocabulary.encode("b"), folders.IM_END])
    async with server.client() as client:
        chat = await answer(client, CHAT, logprobs=True, skip_special_tokens=False)
        text = await answer(client, COMPLETIONS, logprobs=0, skip_special_tokens=False)
        chunks = await stream(client, COMPLETIONS, logprobs=0, skip_special_tokens=False)
    entries = chat["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(e["bytes"]) for e in entries) == b"<|im_start|>b<|im_end|>"
    offsets = text["choices"][0]["logprobs"]["text_offset"]
    assert offsets == [0, len("<|im_start|>"), len("<|im_start|>b")]
    parts = [c["choices"][0]["logprobs"] for c in chunks[:-1] if c["choices"][0]["logprobs"]]
    assert [o for part in parts for o in part["text_offset"]] == offsets


@both
async def test_bad_words_are_banned_tokens(folder: Path, route: str) -> None:
    server = Server(folder)
    vocabulary = server.front.vocabulary
    async with server.client() as client:
        await answer(client, route, bad_words=["a", "<|im_start|>"], logit_bias={"7": 2, "1": 9})
        spaced = [
            vocabulary.spelling(i)[1:] for i in range(400) if vocabulary.token_bytes(i)[:1] == b" "
        ]
        parts = next(w for w in spaced if w.isascii() and len(vocabulary.encode(w)) > 1)
        refused = await post(client, route, bad_words=[parts])
        assert refused.status_code == 400 and "bad_words" in refused.text
    bias = dict(server.scheduler.submits[-1].sampling.logit_bias)
    banned = {token for token, value in bias.items() if value == BAN}
    assert {vocabulary.token_text(token) for token in banned} - {" a"} == {"a", "<|im_start|>"}
    assert bias[7] == 2.0, "what is not banned keeps its bias"


@both
async def test_long_prompts_are_cut_on_demand(folder: Path, route: str) -> None:
    server = Server(folder)
    long: dict[str, Any] = {"prompt": "one two " * 300}
    if route == CHAT:
        long = {"messages": [{"role": "user", "content": "one two " * 300}]}
    async with server.client() as client:
        assert (await post(client, route, **long)).status_code == 400
        tokenized = (await client.post("/tokenize", json=long)).json()["tokens"]
        for truncate, kept in ((10, 10), (-1, 255), (10**9, None)):
            got = await post(client, route, truncate_prompt_tokens=truncate, **long)
            assert got.status_code == (200 if kept else 400), got.text
            if kept:
                prompt = unpack(server.scheduler.submits[-1].prompt)
                assert prompt == tokenized[-kept:]
        await answer(client, route, truncate_prompt_tokens=-1, max_tokens=56, **long)
        assert len(unpack(server.scheduler.submits[-1].prompt)) == 200
        await answer(client, route, truncate_prompt_tokens=-1, max_tokens=10**6, **long)
        assert len(unpack(server.scheduler.submits[-1].prompt)) == 1
        await answer(client, route, truncate_prompt_tokens=200)
        short = len(unpack(server.scheduler.submits[-1].prompt))
        assert short < 200, "what is short is left as it is"


async def test_token_ids_are_cut_too(folder: Path) -> None:
    server = Server(folder)
    async with server.client() as client:
        await answer(client, COMPLETIONS, prompt=[*range(3, 9)] * 99, truncate_prompt_tokens=3)
    assert unpack(server.scheduler.submits[-1].prompt) == [6, 7, 8]


@both
async def test_the_default_limit_of_answers(folder: Path, route: str) -> None:
    for default, fields, wanted in (
        (0, {}, None),
        (9, {}, 9),
        (9, {"max_tokens": 20}, 20),
        (9, {"max_completion_tokens": 3}, 3),
        (9, {"min_tokens": 12}, 12),
        (10**6, {}, None),
        (9, {"max_tokens": 10**9}, None),
    ):
        server = Server(folder, default_max_tokens=default)
        async with server.client() as client:
            await answer(client, route, **fields)
        submit = server.scheduler.submits[-1]
        left = 256 - len(unpack(submit.prompt))
        assert submit.max_tokens == (left if wanted is None else wanted)


async def test_effort_reaches_the_template(tmp_path: Path) -> None:
    template = "{{ reasoning_effort }}:{{ messages[0].content }}"
    server = Server(folders.byte_level(tmp_path, template=template))
    async with server.client() as client:
        for fields, effort in (
            ({"reasoning_effort": "low"}, "low"),
            ({"reasoning": {"effort": "high"}}, "high"),
            ({"reasoning": {"summary": "auto"}}, ""),
            ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "low"),
            ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "x"}}, "x"),
        ):
            await answer(client, CHAT, **fields)
            assert server.prompt == f"{effort}:hi"


@both
async def test_what_clients_send_and_nothing_depends_on(folder: Path, route: str) -> None:
    """The rest of the fields that real clients were seen to send."""
    fields = {
        "user": "u",
        "store": False,
        "metadata": {"a": "b"},
        "include": [],
        "reasoning": {"summary": "auto"},
        "reasoning_effort": "low",
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": []},
        "prompt_cache_key": "k",
        "client_metadata": {"x": 1},
        "service_tier": "auto",
        "separate_reasoning": True,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "best_of": 1,
        "text": {"format": {"type": "text"}},
        "stream_options": {"include_usage": True, "continuous_usage_stats": False},
    }
    server = Server(folder)
    async with server.client() as client:
        plain = await answer(client, route, seed=1, temperature=0)
        got = await answer(client, route, seed=1, temperature=0, **fields)
    first, second = server.scheduler.submits
    assert (first.prompt, first.sampling) == (second.prompt, second.sampling)
    assert got["usage"] == plain["usage"]
