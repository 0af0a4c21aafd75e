"""How tokens are chosen where a request does not say: by the model's file, by OpenAI, by a flag."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from radixserve.api.defaults import SamplingDefaults, read_defaults
from radixserve.messages import Sampling
from tests.api.fakes import Server
from tests.api.sending import CHAT, COMPLETIONS, MESSAGES, RESPONSES, answer

QWEN = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": 1}
SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def advising(folder: Path, **said: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(said))
    return folder


def test_the_model_is_asked_then_the_operator(tmp_path: Path) -> None:
    model = advising(tmp_path, **QWEN, min_p=None)
    assert read_defaults(model, "model") == SamplingDefaults(0.6, 0.95, 20)
    assert read_defaults(model, "openai") == SamplingDefaults(1.0, 1.0, 0, 0.0, 1.0)
    over = read_defaults(model, '{"temperature": 0, "repetition_penalty": 1.1}')
    assert over == SamplingDefaults(0.0, 0.95, 20, 0.0, 1.1)


def test_a_model_that_says_nothing_of_sampling_gets_its_own_distribution(tmp_path: Path) -> None:
    assert read_defaults(tmp_path, "model") == SamplingDefaults()
    assert read_defaults(advising(tmp_path, eos_token_id=2), "model") == SamplingDefaults()
    greedy = advising(tmp_path, **QWEN | {"do_sample": False})
    assert read_defaults(greedy, "model") == SamplingDefaults()


@pytest.mark.parametrize(
    "said", ["models", "[1]", '{"temperature": -1}', '{"topp": 1}', '{"top_k": 1.5}', "{"]
)
def test_a_setting_that_cannot_be_is_refused_with_a_sentence(tmp_path: Path, said: str) -> None:
    with pytest.raises(ValueError, match="--sampling-defaults"):
        read_defaults(tmp_path, said)
    with pytest.raises(ValueError, match="top_p"):
        read_defaults(advising(tmp_path, top_p=3), "model")


def test_a_file_that_is_no_json_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"generation_config\.json is not JSON"):
        read_defaults(tmp_path, "model")
    assert read_defaults(tmp_path, "openai") == SamplingDefaults()


async def sampled(server: Server, route: str, **fields: Any) -> Sampling:
    async with server.client() as client:
        await answer(client, route, **fields)
    return server.scheduler.submits[-1].sampling


@pytest.mark.anyio
@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
async def test_every_surface_fills_in_what_a_request_leaves_out(
    folder: Path, tmp_path: Path, route: str
) -> None:
    model = shutil.copytree(folder, tmp_path / "model")
    server = Server(advising(model, **QWEN))
    left_out = await sampled(server, route)
    assert [getattr(left_out, name) for name in SAMPLED] == [0.6, 0.95, 20, 0.0, 1.0]
    told = await sampled(server, route, temperature=0.1, top_p=0.5)
    assert (told.temperature, told.top_p, told.top_k) == (0.1, 0.5, 20)
    greedy = await sampled(server, route, temperature=0)
    assert greedy.temperature == 0.0


@pytest.mark.anyio
async def test_a_response_says_with_what_it_was_sampled(folder: Path, tmp_path: Path) -> None:
    server = Server(advising(shutil.copytree(folder, tmp_path / "model"), **QWEN))
    async with server.client() as client:
        said = await answer(client, RESPONSES)
        assert (said["temperature"], said["top_p"]) == (0.6, 0.95)
        said = await answer(client, RESPONSES, temperature=0)
        assert said["temperature"] == 0
