"""From chat messages to the prompt that reaches the engine."""

from pathlib import Path
from typing import Any

import pytest

from tests.api.fakes import Server
from tests.api.sending import CHAT, COMPLETIONS, answer, post
from tests.tokenizer import folders

pytestmark = pytest.mark.anyio
USER = {"role": "user", "content": "hi"}
HEADER = "<|im_start|>assistant\n"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}}


async def prompt_of(folder: Path, **fields: Any) -> str:
    server = Server(folder)
    async with server.client() as client:
        await answer(client, CHAT, **fields)
    return server.prompt


async def test_developer_is_system(folder: Path) -> None:
    prompt = await prompt_of(folder, messages=[{"role": "developer", "content": "d"}, USER])
    assert prompt.startswith("<s><|im_start|>system\nd<|im_end|>")


async def test_empty_assistant_turn(folder: Path) -> None:
    messages = [USER, {"role": "assistant", "content": ""}, USER]
    assert "assistant\n<|im_end|>" in await prompt_of(folder, messages=messages)


async def test_trailing_assistant_turn_is_closed_and_a_new_one_begins(folder: Path) -> None:
    messages = [USER, {"role": "assistant", "content": "so"}]
    prompt = await prompt_of(folder, messages=messages)
    assert prompt.endswith("so<|im_end|>\n" + HEADER)


@pytest.mark.parametrize("prefill", ["OK!\n", "1 2 "])
async def test_continue_final_message(folder: Path, prefill: str) -> None:
    messages = [USER, {"role": "assistant", "content": prefill}]
    prompt = await prompt_of(
        folder, messages=messages, continue_final_message=True, add_generation_prompt=False
    )
    assert prompt.endswith(HEADER + prefill)


async def test_no_generation_prompt(folder: Path) -> None:
    assert (await prompt_of(folder, add_generation_prompt=False)).endswith("hi<|im_end|>\n")


async def test_tools_are_rendered_in_their_order_unless_none_is_chosen(folder: Path) -> None:
    shown = '[{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}}]'
    assert shown in await prompt_of(folder, tools=[TOOL], tool_choice="auto")
    assert "tools" not in await prompt_of(folder, tools=[TOOL], tool_choice="none")


async def test_tool_calls_of_the_history(folder: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b":1}'}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "done"}]},
    ]
    prompt = await prompt_of(folder, messages=messages)
    assert '{"b": 1}<|im_end|>' in prompt and "done<|im_end|>" in prompt


async def test_template_variables(tmp_path: Path) -> None:
    template = "{{ messages[0].content }}|{{ thinking }}|{{ reasoning_effort }}"
    folder = folders.byte_level(tmp_path, template=template)
    fields: dict[str, Any] = {"chat_template_kwargs": {"thinking": 7}, "reasoning_effort": "low"}
    assert await prompt_of(folder, **fields) == "hi|7|low"


async def test_without_a_template_only_completions_work(tmp_path: Path) -> None:
    folder = folders.byte_level(tmp_path, template=None)
    async with Server(folder).client() as client:
        response = await post(client, CHAT)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "no_chat_template"
        await answer(client, COMPLETIONS)
    (tmp_path / "mine.jinja").write_text("mine {{ messages[0].content }}")
    server = Server(folder, chat_template=str(tmp_path / "mine.jinja"))
    async with server.client() as client:
        await answer(client, CHAT)
    assert server.prompt == "mine hi"


async def test_the_template_may_refuse(tmp_path: Path) -> None:
    folder = folders.byte_level(tmp_path, template="{{ raise_exception('no system role') }}")
    async with Server(folder).client() as client:
        for stream in (False, True):
            response = await post(client, CHAT, stream=stream)
            assert response.status_code == 400
            assert "no system role" in response.json()["error"]["message"]


async def test_what_reaches_the_engine(folder: Path) -> None:
    server = Server(folder)
    async with server.client() as client:
        await answer(
            client,
            CHAT,
            max_tokens=5,
            max_completion_tokens=9,
            temperature=0,
            top_p=0.5,
            top_k=-1,
            min_p=0.1,
            presence_penalty=-2,
            frequency_penalty=2,
            repetition_penalty=1.5,
            logit_bias={"10": -100, "11": 5},
            ignore_eos=True,
            stop_token_ids=[44],
            min_tokens=2,
            seed=-1,
            cache_salt="s",
            priority=-3,
            user="u",
            best_of=1,
            response_format={"type": "text"},
        )
        (submit,) = server.scheduler.submits
        assert submit.max_tokens == 9
        assert submit.namespace.salt == "s" and submit.namespace.tenant == ""
        assert submit.priority == -3
        s = submit.sampling
        assert (s.temperature, s.top_p, s.top_k, s.min_p) == (0.0, 0.5, 0, 0.1)
        assert (s.presence_penalty, s.frequency_penalty, s.repetition_penalty) == (-2, 2, 1.5)
        assert s.logit_bias == ((10, -100), (11, 5))
        assert s.stop_ids == (44,) and s.min_tokens == 2 and s.top_logprobs == -1
        assert s.seed == 2**63 - 1

        await answer(client, CHAT, max_tokens=None, top_p=0, n=None)
        submit = server.scheduler.submits[-1]
        assert submit.max_tokens == 256 - len(submit.prompt) // 4
        assert (submit.sampling.top_p, submit.sampling.top_k) == (1.0, 1)
        assert submit.sampling.stop_ids == (folders.IM_END,)
        assert submit.sampling.temperature == 1.0

        await answer(client, CHAT, max_tokens=10**12)
        assert server.scheduler.submits[-1].max_tokens == submit.max_tokens
