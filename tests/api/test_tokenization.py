"""Text to tokens and back, and prompts rendered without being run."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.api.tokenization import MAX_TOKENS
from radixserve.messages import unpack
from radixserve.tokenizer.decode import decode_text
from radixserve.tokenizer.prompt import MAX_TEXT_BYTES
from radixserve.tokenizer.vocabulary import SPIECE_SPACE, Vocabulary
from tests.api.fakes import Server
from tests.api.sending import CHAT, COMPLETIONS, answer, body
from tests.tokenizer import folders

pytestmark = pytest.mark.anyio
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


async def test_the_shape_of_tokens(folder: Path) -> None:
    server = Server(folder)
    ids = server.front.vocabulary.encode("one two")
    async with server.client() as client:
        got = await client.post("/tokenize", json={"model": "tiny", "prompt": "one two"})
        assert got.json() == {
            "count": len(ids),
            "max_model_len": 256,
            "tokens": ids,
            "token_strs": None,
        }
        spelled = await client.post(
            "/tokenize", json={"prompt": "one two", "return_token_strs": True}
        )
        assert "".join(spelled.json()["token_strs"]) == "one\u0120two"
        back = await client.post("/detokenize", json={"tokens": ids})
        assert back.json() == {"prompt": "one two"}
        assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}
        assert (await client.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []
    assert not server.scheduler.submits


async def test_more_than_the_context_can_be_counted(folder: Path) -> None:
    async with Server(folder).client() as client:
        got = (await client.post("/tokenize", json={"prompt": "one two " * 500})).json()
        assert got["count"] > got["max_model_len"]
        back = await client.post("/detokenize", json={"tokens": got["tokens"]})
        assert back.json()["prompt"] == "one two " * 500
        long = await client.post("/tokenize", json={"prompt": "x" * (MAX_TEXT_BYTES + 1)})
        assert long.status_code == 400 and long.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"tools": TOOLS},
        {"add_special_tokens": False},
        {"add_special_tokens": True},
    ],
)
async def test_messages_become_what_is_computed(tmp_path: Path, fields: dict[str, Any]) -> None:
    server = Server(folders.byte_level(tmp_path, bos=True))
    async with server.client() as client:
        counted = (await client.post("/tokenize", json=body(CHAT, **fields))).json()
        rendered = (await client.post(f"{CHAT}/render", json=body(CHAT, **fields))).json()
        await answer(client, CHAT, **fields)
    sent = unpack(server.scheduler.submits[-1].prompt)
    assert counted["tokens"] == rendered["token_ids"] == sent
    assert counted["count"] == len(sent)


async def test_special_tokens_are_added_where_they_are_wanted(tmp_path: Path) -> None:
    server = Server(folders.byte_level(tmp_path, bos=True))
    async with server.client() as client:
        for special, wanted in ((None, True), (True, True), (False, False)):
            fields = {"prompt": "x", "add_special_tokens": special}
            ids = (await client.post("/tokenize", json=fields)).json()["tokens"]
            assert (ids[0] == folders.BOS) is wanted
            await answer(client, COMPLETIONS, **fields)
            assert unpack(server.scheduler.submits[-1].prompt) == ids


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "king"}]}, "messages[0].role"),
        ("/tokenize", {"messages": [], "tools": [{"type": "web"}]}, "tools[0]"),
        ("/tokenize", {"prompt": "x", "chat_template": "x"}, "chat_template"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [410]}, "tokens"),
        ("/detokenize", {"tokens": [2**80]}, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1] * (MAX_TOKENS + 1)}, "tokens"),
        (f"{CHAT}/render", {"messages": []}, "messages"),
        (f"{COMPLETIONS}/render", {"prompt": ""}, "prompt"),
        (f"{COMPLETIONS}/render", {"prompt": [5] * 256}, "prompt"),
    ],
)
async def test_faults_are_named(
    folder: Path, route: str, fields: dict[str, Any], param: str
) -> None:
    async with Server(folder).client() as client:
        got = await client.post(route, json=fields)
        assert got.status_code == 400, got.text
        assert got.json()["error"]["param"] == param
        unknown = await client.post(route, json=fields | {"model": "gpt-9"})
        assert unknown.status_code in (400, 404)


async def test_rendered_completions(folder: Path) -> None:
    server = Server(folder, default_max_tokens=50)
    fields = {
        "prompt": ["one two", "beta"],
        "seed": 7,
        "temperature": 0,
        "stop": "x",
        "logit_bias": {"5": 3},
        "cache_salt": "s",
        "stream": True,
    }
    async with server.client() as client:
        got = (await client.post(f"{COMPLETIONS}/render", json=fields)).json()
        assert [r["token_ids"] for r in got] == [
            server.front.vocabulary.encode(p) for p in fields["prompt"]
        ]
        limited = await client.post(f"{COMPLETIONS}/render", json=fields | {"max_tokens": 10**6})
    assert all(r["request_id"].startswith("cmpl-") and r["model"] == "tiny" for r in got)
    parameters = got[0]["sampling_params"]
    assert (parameters["seed"], parameters["temperature"], parameters["max_tokens"]) == (7, 0.0, 50)
    assert parameters["stop"] == ["x"] and parameters["logit_bias"] == {"5": 3.0}
    assert parameters["stop_token_ids"] == [folders.IM_END]
    assert got[0]["cache_salt"] == "s" and got[0]["stream"] is True
    most = limited.json()[0]
    assert most["sampling_params"]["max_tokens"] == 256 - len(most["token_ids"])
    assert not server.scheduler.submits


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> list[Vocabulary]:
    folder = tmp_path_factory.mktemp("vocabularies")
    return [
        Vocabulary(folders.byte_level(folder / "bytes", bos=True)),
        Vocabulary(folders.sentencepiece(folder / "pieces")),
    ]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters=[SPIECE_SPACE])),
    special=st.booleans(),
)
def test_text_comes_back(vocabularies: list[Vocabulary], text: str, special: bool) -> None:
    for vocabulary in vocabularies:
        ids = vocabulary.encode(text, special)
        begin = "<s>" if special and ids[:1] == [folders.BOS] and not text.startswith("<s>") else ""
        assert decode_text(ids, vocabulary) == begin + text


def test_what_cannot_be_a_character_is_replaced(vocabularies: list[Vocabulary]) -> None:
    vocabulary = vocabularies[0]
    (part,) = [i for i in range(400) if vocabulary.token_bytes(i) == b"\xf0"]
    assert decode_text([part], vocabulary) == "\ufffd"
    assert decode_text([part, folders.IM_END], vocabulary) == "\ufffd<|im_end|>"
