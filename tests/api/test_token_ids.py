"""Token ids in answers, and log probabilities that name tokens by them: vLLM's two fields."""

from pathlib import Path

import pytest

from radixserve.messages import unpack
from tests.api.fakes import Server
from tests.api.sending import CHAT, COMPLETIONS, answer, stream, text_of

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
SAID = "Hey 🎉"


@both
async def test_ids_of_prompt_and_answer(folder: Path, route: str) -> None:
    server = Server(folder, SAID)
    async with server.client() as client:
        got = await answer(client, route, return_token_ids=True, n=2)
        chunks = await stream(client, route, return_token_ids=True, n=2)
        plain = await answer(client, route, return_token_ids=False)
    prompt = unpack(server.scheduler.submits[0].prompt)
    assert len(got["choices"]) == 2
    for index, choice in enumerate(got["choices"]):
        assert choice["token_ids"] == server.script
        own = (choice if route == COMPLETIONS else got)["prompt_token_ids"]
        assert own == prompt
        mine = [
            (chunk, c) for chunk in chunks[:-1] for c in chunk["choices"] if c["index"] == index
        ]
        assert [i for _, c in mine for i in c.get("token_ids", ())] == server.script
        told = [c.get("prompt_token_ids") or chunk.get("prompt_token_ids") for chunk, c in mine]
        assert told[0] == prompt and not any(told[1:])
        assert text_of(chunks, index) == SAID
    assert "token_ids" not in plain["choices"][0] and "prompt_token_ids" not in plain


@both
async def test_log_probabilities_name_tokens_by_their_ids(folder: Path, route: str) -> None:
    server = Server(folder, SAID)
    fields = {"return_tokens_as_token_ids": True}
    asked = {"logprobs": True, "top_logprobs": 2} if route == CHAT else {"logprobs": 2}
    async with server.client() as client:
        (choice,) = (await answer(client, route, **fields, **asked))["choices"]
    names = [f"token_id:{token}" for token in server.script]
    if route == COMPLETIONS:
        assert choice["logprobs"]["tokens"] == names
        tops = choice["logprobs"]["top_logprobs"]
        assert all(
            top.keys() == {"token_id:10", "token_id:11", n}
            for top, n in zip(tops, names, strict=True)
        )
        return
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == names
    assert bytes(b for entry in entries for b in entry["bytes"]).decode() == SAID
    assert {top["token"] for e in entries for top in e["top_logprobs"]} == {
        "token_id:10",
        "token_id:11",
    }


@both
@pytest.mark.parametrize("name", ["include_stop_str_in_output", "no_stop_trim"])
async def test_sglangs_name_for_keeping_the_stop(folder: Path, route: str, name: str) -> None:
    async with Server(folder, "One. Two.").client() as client:
        (choice,) = (await answer(client, route, stop=". ", **{name: True}))["choices"]
    said = choice["message"]["content"] if route == CHAT else choice["text"]
    assert said == "One. "
