"""Prompts in their own answers: `echo`, and log probabilities of their tokens."""

from pathlib import Path
from typing import Any

import pytest

from radixserve.messages import unpack
from tests.api.fakes import Server
from tests.api.sending import CHAT, COMPLETIONS, answer, fault_of, post, stream, text_of
from tests.tokenizer import folders

pytestmark = pytest.mark.anyio
PROMPT = "Once upon a <|im_start|> žluť 🎉"
LM_EVAL = {"echo": True, "temperature": 0, "seed": 1234, "logprobs": 1}


def check_columns(server: Server, choice: dict[str, Any], first: int = 1) -> list[int]:
    """That the choice's logprobs are as the fake scheduler gave them. Returns the tokens."""
    vocabulary, prompt = server.front.vocabulary, unpack(server.scheduler.submits[0].prompt)
    columns = choice["logprobs"]
    size = len(prompt)
    assert len({len(column) for column in columns.values()}) == 1
    assert columns["tokens"][:size] == [vocabulary.token_text(t) for t in prompt]
    assert columns["token_logprobs"][:size] == [
        None if at < first else -token / 8 for at, token in enumerate(prompt)
    ]
    assert [top is None for top in columns["top_logprobs"][:size]] == [
        at < first for at in range(size)
    ]
    assert all(value == -0.5 for value in columns["token_logprobs"][size:])
    text, tokens = choice["text"], columns["tokens"]
    for token, offset in zip(tokens, columns["text_offset"], strict=True):
        if not token.startswith("bytes:") and token not in ("<s>", "</s>", "<|im_end|>"):
            assert text.startswith(token, offset), "offsets are those of the text"
    return prompt


@pytest.mark.parametrize("most", [0, 1])
async def test_as_lm_evaluation_harness_asks(folder: Path, most: int) -> None:
    server = Server(folder, "Hello")
    async with server.client() as client:
        got = await answer(client, COMPLETIONS, prompt=PROMPT, max_tokens=most, **LM_EVAL)
        chunks = await stream(client, COMPLETIONS, prompt=PROMPT, max_tokens=most, **LM_EVAL)
    (choice,) = got["choices"]
    prompt = check_columns(server, choice)
    assert len(choice["logprobs"]["tokens"]) == len(prompt) + most
    assert choice["text"].startswith(PROMPT) and (choice["text"] == PROMPT) == (most == 0)
    assert choice["finish_reason"] == "length"
    assert got["usage"]["completion_tokens"] == most
    assert got["usage"]["total_tokens"] == len(prompt) + most
    assert server.scheduler.submits[0].max_tokens == 1
    top = choice["logprobs"]["top_logprobs"]
    assert all(max(each.values()) == -0.125 for each in top[1 : len(prompt)])
    assert text_of(chunks) == choice["text"]
    parts = [c["choices"][0]["logprobs"] for c in chunks[:-1] if c["choices"][0]["logprobs"]]
    joined = {name: [value for part in parts for value in part[name]] for name in parts[0]}
    assert joined == choice["logprobs"]
    assert chunks[0]["choices"][0]["text"] == PROMPT
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


async def test_nothing_is_scored_without_logprobs(folder: Path) -> None:
    server = Server(folder, "Hello")
    async with server.client() as client:
        got = await answer(client, COMPLETIONS, prompt=PROMPT, echo=True)
        await answer(client, COMPLETIONS, prompt=PROMPT, logprobs=2)
        await answer(client, COMPLETIONS, prompt=PROMPT, echo=False, logprobs=2)
    assert got["choices"][0]["text"] == f"{PROMPT}Hello"
    assert got["choices"][0]["logprobs"] is None
    assert {s.sampling.prompt_logprobs for s in server.scheduler.submits} == {-1}


@pytest.mark.parametrize("prompt", [PROMPT, f"<s>{PROMPT}"])
async def test_prompts_of_token_ids_are_spelled_out(folder: Path, prompt: str) -> None:
    server = Server(folder, "Hello")
    ids = server.front.vocabulary.encode(prompt, add_special_tokens=False)
    async with server.client() as client:
        got = await answer(client, COMPLETIONS, prompt=ids, echo=True, logprobs=0)
        same = await answer(client, COMPLETIONS, prompt=prompt, echo=True)
    assert got["choices"][0]["text"] == same["choices"][0]["text"] == f"{prompt}Hello"
    check_columns(server, got["choices"][0])


async def test_a_prompt_that_was_cut_is_echoed_as_it_was_computed(folder: Path) -> None:
    server = Server(folder, "Hello")
    fields = {"echo": True, "logprobs": 1, "truncate_prompt_tokens": 9}
    async with server.client() as client:
        (choice,) = (await answer(client, COMPLETIONS, prompt=PROMPT, **fields))["choices"]
    assert len(check_columns(server, choice)) == 9
    assert f"{PROMPT}Hello".endswith(choice["text"].lstrip("\ufffd")) and choice["text"]


async def test_sentencepiece_writes_a_space_that_is_not_the_texts(tmp_path: Path) -> None:
    server = Server(folders.sentencepiece(tmp_path), [5])
    async with server.client() as client:
        fields = {"echo": True, "logprobs": 1, "max_tokens": 0}
        (choice,) = (await answer(client, COMPLETIONS, prompt="hello hello", **fields))["choices"]
    assert choice["text"] == "hello hello"
    starts = dict(zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True))
    assert all(0 <= at < len(choice["text"]) for at in starts.values())
    shown = [token for token in choice["logprobs"]["tokens"] if token != "<s>"]
    assert len("".join(shown)) == len(choice["text"]) + 1


async def test_every_choice_has_the_prompt_which_is_scored_once(folder: Path) -> None:
    """The first choice's scores come long after the others' answers."""
    server = Server(folder, "Hello")
    server.scheduler.score_pause = 0.02
    fields = {"prompt": ["one prompt", "another one"], "n": 3, "echo": True, "logprobs": 2}
    async with server.client() as client:
        got = await answer(client, COMPLETIONS, **fields)
        chunks = await stream(client, COMPLETIONS, **fields)
    best = [s.sampling.prompt_logprobs for s in server.scheduler.submits]
    assert best == [2, -1, -1] * 4
    for index, choice in enumerate(got["choices"]):
        assert choice["text"] == fields["prompt"][index // 3] + "Hello"  # type: ignore[index]
        assert choice["logprobs"] | {"text": ""} == got["choices"][index // 3 * 3]["logprobs"] | {
            "text": ""
        }
        assert text_of(chunks, index) == choice["text"]
        parts = [
            c["choices"][0]["logprobs"]
            for c in chunks[:-1]
            if c["choices"][0]["index"] == index and c["choices"][0]["logprobs"]
        ]
        assert [v for part in parts for v in part["token_logprobs"]] == choice["logprobs"][
            "token_logprobs"
        ]


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("best", "start"), [(0, 0), (1, 0), (3, 4)])
async def test_vllms_prompt_logprobs(folder: Path, route: str, best: int, start: int) -> None:
    server = Server(folder, "Hello")
    fields = {"prompt_logprobs": best, "logprob_start_len": start, "n": 2}
    async with server.client() as client:
        got = await answer(client, route, **fields)
    vocabulary, prompt = server.front.vocabulary, unpack(server.scheduler.submits[0].prompt)
    holders = got["choices"] if route == COMPLETIONS else [got]
    shown = [holder["prompt_logprobs"] for holder in holders]
    assert shown[0] == shown[-1]
    if route == COMPLETIONS:
        assert len(shown) == 2 and "prompt_logprobs" not in got
        assert got["choices"][0]["text"] == "Hello"
    assert len(shown[0]) == len(prompt)
    for at, (token, told) in enumerate(zip(prompt, shown[0], strict=True)):
        if at < max(start, 1):
            assert told is None
            continue
        text = vocabulary.token_text
        own = {"logprob": -token / 8, "rank": token, "decoded_token": text(token)}
        others = {
            str(10 + i): {
                "logprob": -9999.0 if i else -0.125,
                "rank": i + 1,
                "decoded_token": text(10 + i),
            }
            for i in range(best)
        }
        assert told == {str(token): own} | others
        assert next(iter(told)) == str(token)


async def test_both_are_told_with_as_many_of_the_best_as_each_wants(folder: Path) -> None:
    server = Server(folder, "Hello")
    fields = {"echo": True, "logprobs": 1, "prompt_logprobs": 3}
    async with server.client() as client:
        (choice,) = (await answer(client, COMPLETIONS, prompt="some words", **fields))["choices"]
    assert server.scheduler.submits[0].sampling.prompt_logprobs == 3
    size = len(choice["prompt_logprobs"])
    assert {len(top) for top in choice["logprobs"]["top_logprobs"][1:size]} == {2}
    assert {len(told) for told in choice["prompt_logprobs"][1:]} == {4}


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": 0, "echo": False}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": 0, "prompt_logprobs": 1}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": 0, "echo": True, "min_tokens": 2}, "min_tokens"),
        (COMPLETIONS, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": 21}, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": -1}, "prompt_logprobs"),
        (COMPLETIONS, {"logprob_start_len": -1}, "logprob_start_len"),
        (CHAT, {"echo": True}, "echo"),
        ("/v1/responses", {"input": "hi", "prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
async def test_what_cannot_be_told_is_refused(
    folder: Path, route: str, fields: dict[str, Any], param: str
) -> None:
    async with Server(folder).client() as client:
        if "input" in fields:
            response = await client.post(route, json=fields)
        else:
            response = await post(client, route, **fields)
    assert response.status_code == 400
    assert fault_of(route, response)["param"] == param


async def test_an_aborted_request_says_what_it_knows(folder: Path) -> None:
    server = Server(folder, "Hello")
    server.scheduler.score_pause = 0.05
    deliver = server.engine.deliver
    seen = 0

    def abort_in_the_middle(messages: Any) -> None:
        nonlocal seen
        deliver(messages)
        seen += 1
        if seen == 2:
            server.engine.abort(None)

    server.engine.deliver = abort_in_the_middle  # type: ignore[method-assign]
    async with server.client() as client:
        fields = {"prompt": PROMPT, "echo": True, "logprobs": 1}
        (choice,) = (await answer(client, COMPLETIONS, **fields))["choices"]
    assert choice["finish_reason"] == "abort" and choice["text"] == PROMPT
    told = choice["logprobs"]["token_logprobs"]
    assert [value is None for value in told] == [True] + [False] * 10 + [True] * (len(told) - 11)
