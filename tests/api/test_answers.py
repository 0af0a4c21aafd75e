"""What both generation routes answer: text, stops, usage, logprobs; streamed and whole."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.fakes import Server
from tests.api.sending import CHAT, COMPLETIONS, answer, finish_of, post, stream, text_of
from tests.tokenizer import folders

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
ODD = "Say: 👩‍👩‍👧 žluťoučký 日本語 שלום עולם 🎉"


def text(choice: dict[str, Any]) -> str:
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


async def test_the_shape_of_a_chat_answer(folder: Path) -> None:
    server = Server(folder, "Hello")
    async with server.client() as client:
        got = await answer(client, CHAT, model="tiny")
    (choice,) = got.pop("choices")
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello", "refusal": None, "annotations": []},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert got["object"] == "chat.completion" and got["model"] == "tiny"
    assert got["id"].startswith("chatcmpl-") and got["system_fingerprint"] == "fp_0123456789ab"
    assert got["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert server.prompt == "<s><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert not server.scheduler.aborts


async def test_the_shape_of_a_chat_stream(folder: Path) -> None:
    async with Server(folder, "Hello").client() as client:
        chunks = await stream(client, CHAT)
    assert chunks[-1] == "[DONE]"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all("role" not in c["choices"][0]["delta"] for c in chunks[1:-1])
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-2]["choices"][0]["delta"] == {}
    assert len({c["id"] for c in chunks[:-1]}) == 1
    assert all("usage" not in c for c in chunks[:-1])


@both
@pytest.mark.parametrize("per_message", [1, 3, 100])
@pytest.mark.parametrize(
    ("fields", "said", "finish"),
    [
        ({}, ODD, "stop"),
        ({"stop": "zzz-never 🎉"}, ODD, "stop"),
        ({"stop": ["日本", "never"]}, "Say: 👩‍👩‍👧 žluťoučký ", "stop"),
        ({"stop": "y: 👩"}, "Sa", "stop"),
        ({"logprobs": True}, ODD, "stop"),
    ],
)
async def test_streamed_and_whole_text_agree(
    folder: Path, route: str, per_message: int, fields: dict[str, Any], said: str, finish: str
) -> None:
    server = Server(folder, ODD)
    server.scheduler.per_message = per_message
    if route == COMPLETIONS and fields.get("logprobs"):
        fields = {"logprobs": 1}
    async with server.client() as client:
        (choice,) = (await answer(client, route, **fields))["choices"]
        chunks = await stream(client, route, **fields)
    assert text(choice) == said == text_of(chunks)
    assert choice["finish_reason"] == finish
    assert finish_of(chunks) == [finish]
    assert "\ufffd" not in said


@both
async def test_a_stop_string_aborts_once(folder: Path, route: str) -> None:
    server = Server(folder, server_text := "one two three four five six")
    server.scheduler.pause = 0.002
    async with server.client() as client:
        got = await answer(client, route, stop=" three")
        await stream(client, route, stop=" three")
    assert text(got["choices"][0]) == server_text.partition(" three")[0]
    assert server.scheduler.aborts == [s.request_id for s in server.scheduler.submits]


@both
async def test_held_text_comes_at_the_length_limit(folder: Path, route: str) -> None:
    server = Server(folder, [*b"abczz"])
    ids = [server.front.vocabulary.encode(c)[0] for c in "abczz"]
    server.say(ids)
    async with server.client() as client:
        got = await answer(client, route, stop="zzz-never", max_tokens=5)
        chunks = await stream(client, route, stop="zzz-never", max_tokens=5)
    assert text(got["choices"][0]) == "abczz" == text_of(chunks)
    assert got["choices"][0]["finish_reason"] == "length"
    assert finish_of(chunks) == ["length"]


@both
async def test_an_unfinished_character_at_the_end(folder: Path, route: str) -> None:
    server = Server(folder, "ab🎉")
    vocabulary = server.front.vocabulary
    server.say(
        [
            *vocabulary.encode("ab"),
            next(i for i in range(400) if vocabulary.token_bytes(i) == b"\xf0"),
        ]
    )
    async with server.client() as client:
        limit = len(server.script)
        got = await answer(client, route, max_tokens=limit)
        chunks = await stream(client, route, max_tokens=limit)
    assert text(got["choices"][0]) == "ab\ufffd" == text_of(chunks)


@both
@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": None}])
async def test_usage_only_on_demand(folder: Path, route: str, options: Any) -> None:
    async with Server(folder).client() as client:
        chunks = await stream(client, route, stream_options=options)
    assert all("usage" not in c and c["choices"] for c in chunks[:-1])


@both
async def test_usage_is_the_same_in_streams_and_metrics(folder: Path, route: str) -> None:
    server = Server(folder, "Hello")
    server.scheduler.cached = lambda _: 3
    async with server.client() as client:
        whole = (await answer(client, route))["usage"]
        before = (await client.get("/metrics")).text
        chunks = await stream(client, route, stream_options={"include_usage": True})
        after = (await client.get("/metrics")).text
    assert chunks[-2]["choices"] == [] and chunks[-2]["usage"] == whole
    assert all(c["usage"] is None for c in chunks[:-2])
    assert whole["prompt_tokens_details"]["cached_tokens"] == 3
    assert whole["completion_tokens"] == len(server.script)
    assert whole["prompt_tokens"] == len(server.scheduler.submits[0].prompt) // 4
    assert whole["total_tokens"] == whole["prompt_tokens"] + whole["completion_tokens"]

    def value(page: str, name: str) -> float:
        (line,) = [li for li in page.splitlines() if li.startswith(f"radixserve_{name}_total ")]
        return float(line.split()[1])

    for name, expected in (
        ("cached_tokens", 3),
        ("prompt_tokens", whole["prompt_tokens"]),
        ("generated_tokens", whole["completion_tokens"]),
    ):
        assert value(after, name) - value(before, name) == expected


@both
async def test_continuous_usage(folder: Path, route: str) -> None:
    server = Server(folder, "Hello")
    async with server.client() as client:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = await stream(client, route, stream_options=options)
    counts = [c["usage"]["completion_tokens"] for c in chunks[:-1]]
    assert counts == sorted(counts) and counts[-1] == len(server.script)


@both
async def test_n_choices(folder: Path, route: str) -> None:
    server = Server(folder, "Hello")
    server.scheduler.script = lambda s: server.front.vocabulary.encode(s.request_id[-1] * 3)
    async with server.client() as client:
        got = await answer(client, route, n=3, seed=7, max_tokens=4)
        chunks = await stream(client, route, n=3, seed=7, max_tokens=4)
    assert [c["index"] for c in got["choices"]] == [0, 1, 2]
    for i, choice in enumerate(got["choices"]):
        assert text(choice).startswith(str(i) * 3)
        assert text_of(chunks, i) == text(choice)
        assert finish_of(chunks, i) == ["length"]
    prompts = {s.prompt for s in server.scheduler.submits}
    assert len(prompts) == 1
    assert [s.sampling.seed for s in server.scheduler.submits] == [7, 8, 9] * 2
    async with server.client() as client:
        await answer(client, route, n=2, seed=-1)
    assert [s.sampling.seed for s in server.scheduler.submits][-2:] == [2**63 - 1, 0]
    assert got["usage"]["prompt_tokens"] == len(prompts.pop()) // 4
    assert got["usage"]["completion_tokens"] == 12


async def test_cached_tokens_are_of_each_prompts_first_choice(folder: Path) -> None:
    server = Server(folder, "Hello")
    server.scheduler.cached = lambda s: 10 ** int(s.request_id[-1])
    async with server.client() as client:
        got = await answer(client, COMPLETIONS, prompt=["a", "b"], n=2)
        chunks = await stream(
            client, COMPLETIONS, prompt=["a", "b"], n=2, stream_options={"include_usage": True}
        )
    assert got["usage"]["prompt_tokens_details"] == {"cached_tokens": 1 + 100}
    assert chunks[-2]["usage"] == got["usage"]


@both
async def test_unseeded_requests_differ(folder: Path, route: str) -> None:
    server = Server(folder)
    async with server.client() as client:
        await answer(client, route)
        await answer(client, route)
    first, second = (s.sampling.seed for s in server.scheduler.submits)
    assert first != second and 0 <= first < 1 << 63


async def test_chat_logprobs(folder: Path) -> None:
    server = Server(folder, ODD)
    async with server.client() as client:
        plain = (await answer(client, CHAT))["choices"][0]
        got = await answer(client, CHAT, logprobs=True, top_logprobs=2)
        chunks = await stream(client, CHAT, logprobs=True, top_logprobs=2)
    (choice,) = got["choices"]
    assert text(choice) == text(plain) == ODD
    content = choice["logprobs"]["content"]
    assert len(content) == got["usage"]["completion_tokens"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == ODD
    assert [t["logprob"] for t in content[0]["top_logprobs"]] == [-0.1, -9999.0]
    streamed = [
        entry
        for chunk in chunks[:-1]
        if chunk["choices"][0]["logprobs"]
        for entry in chunk["choices"][0]["logprobs"]["content"]
    ]
    assert streamed == content


async def test_logprobs_with_a_stop_string_count_the_tokens(folder: Path) -> None:
    server = Server(folder, "alpha beta gamma delta")
    server.scheduler.per_message = 4
    async with server.client() as client:
        got = await answer(client, CHAT, logprobs=True, stop="beta gamma")
        chunks = await stream(
            client, CHAT, logprobs=True, stop="beta gamma", stream_options={"include_usage": True}
        )
    assert text(got["choices"][0]) == "alpha "
    content = got["choices"][0]["logprobs"]["content"]
    assert len(content) == got["usage"]["completion_tokens"] < len(server.script)
    choices = [c["choices"][0] for c in chunks[:-2]]
    assert sum(len((c["logprobs"] or {"content": ()})["content"]) for c in choices) == len(content)
    assert chunks[-2]["usage"] == got["usage"]


async def test_no_infinite_numbers(folder: Path) -> None:
    server = Server(folder, "a")
    server.scheduler.logprob = float("nan")
    async with server.client() as client:
        for route, fields in ((CHAT, {"logprobs": True}), (COMPLETIONS, {"logprobs": 0})):
            response = await post(client, route, **fields)
            assert response.status_code == 200
            assert "null" not in response.text.partition('"logprobs":{')[2].partition("refusal")[0]
            assert "-9999" in response.text


async def test_completion_logprobs(folder: Path) -> None:
    server = Server(folder, "kůň 🎉 x")
    async with server.client() as client:
        whole = (await answer(client, COMPLETIONS, logprobs=1))["choices"][0]["logprobs"]
        chunks = await stream(client, COMPLETIONS, logprobs=1)
    assert len(whole["tokens"]) == len(whole["token_logprobs"]) == len(server.script)
    said = b"".join(map(server.front.vocabulary.token_bytes, server.script)).decode()
    offsets = [o for t, o in zip(whole["tokens"], whole["text_offset"], strict=True) if t == " x"]
    assert offsets in ([said.index(" x")], [])
    assert whole["text_offset"][-1] == len("kůň 🎉 x")
    parts = [c["choices"][0]["logprobs"] for c in chunks[:-1] if c["choices"][0]["logprobs"]]
    for field, values in whole.items():
        assert [v for part in parts for v in part[field]] == values


async def test_stop_token_text_is_not_shown(folder: Path) -> None:
    server = Server(folder, "ab")
    vocabulary = server.front.vocabulary
    ids = [vocabulary.encode(c)[0] for c in "xyz"]
    server.say(ids)
    async with server.client() as client:
        got = await answer(client, COMPLETIONS, stop_token_ids=[ids[1]])
    assert text(got["choices"][0]) == "x" and got["choices"][0]["finish_reason"] == "stop"
    assert got["usage"]["completion_tokens"] == 2


async def test_min_tokens_hold_for_stop_strings_too(folder: Path) -> None:
    server = Server(folder)
    server.say([server.front.vocabulary.encode(c)[0] for c in "xxaxxb"])
    async with server.client() as client:
        got = await answer(client, COMPLETIONS, stop="xx", min_tokens=3, max_tokens=6)
    assert text(got["choices"][0]) == "xxa"


async def test_prompts_of_all_forms(folder: Path) -> None:
    server = Server(folder, "ok")
    ids = server.front.vocabulary.encode("one two")
    async with server.client() as client:
        for prompt, count in (
            ("one two", 1),
            (ids, 1),
            (["one two", "one two"], 2),
            ([ids, ids], 2),
        ):
            del server.scheduler.submits[:]
            got = await answer(client, COMPLETIONS, prompt=prompt, n=2)
            assert [c["index"] for c in got["choices"]] == list(range(2 * count))
            assert got["usage"]["prompt_tokens"] == count * len(ids)
            assert server.prompt == "one two"


async def test_one_bos_and_the_same_prefix_on_both_routes(tmp_path: Path) -> None:
    server = Server(folders.byte_level(tmp_path, bos=True))
    async with server.client() as client:
        chat = await answer(client, CHAT)
        rendered = server.prompt
        completion = await answer(client, COMPLETIONS, prompt=rendered)
        assert completion["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"]
        assert rendered.count("<s>") == 1 == server.prompt.count("<s>")
        await answer(client, COMPLETIONS, prompt="x")
    assert server.prompt == "<s>x"
