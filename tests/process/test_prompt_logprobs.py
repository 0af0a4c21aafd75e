"""Prompts' log probabilities through the whole engine: cached or not, they are the model's."""

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

from radixserve.llm import LLM, Answer
from radixserve.messages import Abort, CacheDirectives, Submit, TokenLogprobs, pack
from tests.process.test_exactness import GREEDY, PAGE, PROMPT, engine

BEST = 2
SCORED = replace(GREEDY, prompt_logprobs=BEST)
TOLERANCE = 2e-4
NOTHING_KEPT = CacheDirectives(store_until=0)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> torch.nn.Module:
    loaded: torch.nn.Module = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    return loaded


def check(model: torch.nn.Module, prompt: list[int], found: list[TokenLogprobs]) -> None:
    """That `found` are of the prompt's last tokens, and of no fewer than they are."""
    with torch.inference_mode():
        whole = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    for token, expected, got in zip(prompt[::-1], reversed(whole[:-1]), found[::-1], strict=False):
        assert got.chosen == pytest.approx(expected[token].item(), abs=TOLERANCE)
        assert got.rank == int((expected >= expected[token]).sum())
        best = expected.topk(BEST)
        assert [i for i, _ in got.top] == best.indices.tolist()
        assert [p for _, p in got.top] == pytest.approx(best.values.tolist(), abs=TOLERANCE)


def whole(model: torch.nn.Module, answer: Answer, prompt: list[int] = PROMPT) -> None:
    assert len(answer.prompt_logprobs) == len(prompt) - 1
    check(model, prompt, answer.prompt_logprobs)


def test_cold_hot_and_after_an_ordinary_request(checkpoint: Path, model: torch.nn.Module) -> None:
    llm = engine(checkpoint)
    (first,) = llm.generate([PROMPT], SCORED, 3)
    whole(model, first)
    (plain,) = llm.generate([PROMPT], GREEDY, 3)
    assert plain.cached_tokens == len(PROMPT) - 1 and not plain.prompt_logprobs
    (again,) = llm.generate([PROMPT], SCORED, 3)
    assert again.cached_tokens == 0, "what gave no logits was computed"
    whole(model, again)
    assert first.tokens == plain.tokens == again.tokens


@pytest.mark.parametrize("start", [0, 1, 2, PAGE - 1, PAGE, PAGE + 1, 40, 51, 52, 53, 60])
def test_what_stands_before_the_first_that_is_wanted_is_reused(
    checkpoint: Path, model: torch.nn.Module, start: int
) -> None:
    """To the token, by a copy."""
    llm = engine(checkpoint)
    llm.generate([PROMPT], GREEDY, 1)
    (answer,) = llm.generate([PROMPT], replace(SCORED, logprob_start=start), 2)
    assert answer.cached_tokens == min(max(start, 1), len(PROMPT)) - 1
    assert len(answer.prompt_logprobs) == max(len(PROMPT) - max(start, 1), 0)
    check(model, PROMPT, answer.prompt_logprobs)


@pytest.mark.parametrize("chunk", [19, 32, 512])
def test_together_with_others_that_share_and_chunked(
    checkpoint: Path, model: torch.nn.Module, chunk: int
) -> None:
    """Six at once, three of them equal, two plain; twice, so that the second time all is cached."""
    llm = engine(checkpoint, chunked_prefill_size=chunk, max_running_requests=4)
    fork = [*PROMPT[:35], 401, 402]
    prompts = [PROMPT, fork, PROMPT, PROMPT, fork, PROMPT]
    asked = [SCORED, GREEDY, SCORED, SCORED, replace(SCORED, logprob_start=20), GREEDY]
    for _ in range(2):
        answers = llm.generate(prompts, asked, 2)
        for at in (0, 2, 3):
            whole(model, answers[at])
        assert [len(answers[at].prompt_logprobs) for at in (1, 4, 5)] == [0, len(fork) - 20, 0]
        check(model, fork, answers[4].prompt_logprobs)
        assert len({tuple(answers[at].tokens) for at in (0, 2, 3, 5)}) == 1


def test_a_request_that_leaves_nothing_behind_is_scored_in_chunks(
    checkpoint: Path, model: torch.nn.Module
) -> None:
    llm = engine(checkpoint, chunked_prefill_size=19, max_running_requests=4)
    (answer,) = llm.generate([PROMPT], SCORED, 2, cache=NOTHING_KEPT)
    whole(model, answer)


def run(llm: LLM, submits: list[Submit], abort_after: int = 0) -> tuple[dict[str, Answer], int]:
    """Answers by id, and the preemptions. `abort_after` so many steps the first is aborted."""
    answers = {submit.request_id: Answer() for submit in submits}
    for submit in submits:
        llm.scheduler.submit(submit)
    if abort_after:
        for _ in range(abort_after):
            step = llm.scheduler.next_step()
            assert step is not None
            llm.scheduler.done(llm.runner.run(step))
        llm.scheduler.abort(Abort(submits[0].request_id).request_id)
    llm._run(answers)
    return answers, llm.scheduler.counters.preemptions


def test_aborted_in_the_middle(checkpoint: Path, model: torch.nn.Module) -> None:
    llm = engine(checkpoint, chunked_prefill_size=19, max_running_requests=4)
    submits = [Submit(name, 0, pack(PROMPT), SCORED, 2) for name in ("leaves", "stays")]
    answers, _ = run(llm, submits, abort_after=2)
    left = answers["leaves"].prompt_logprobs
    assert 0 < len(left) < len(PROMPT) - 1
    check(model, PROMPT[: len(left) + 1], left)
    whole(model, answers["stays"])


def test_preempted_in_the_middle(checkpoint: Path, model: torch.nn.Module) -> None:
    """Older requests need pages while a prompt is half scored; no token of it is told twice."""
    llm = engine(checkpoint, 68, page_size=2, chunked_prefill_size=4, max_running_requests=3)
    prompts = {"old": PROMPT[:4], "older": [9, *PROMPT[:3]], "long": PROMPT[:43]}
    submits = [
        Submit(name, 0, pack(prompt), SCORED, 2 if name == "long" else 40)
        for name, prompt in prompts.items()
    ]
    half = 0
    preempt = llm.scheduler._preempt

    def watched(request) -> None:  # type: ignore[no-untyped-def]
        nonlocal half
        half += 1 < request.scored < request.prompt_len
        preempt(request)

    llm.scheduler._preempt = watched  # type: ignore[method-assign]
    answers, preemptions = run(llm, submits)
    assert preemptions and half, "a prompt was half scored when its pages were taken"
    for name, prompt in prompts.items():
        whole(model, answers[name], prompt)
        (alone,) = engine(checkpoint).generate([prompt], GREEDY, len(answers[name].tokens))
        assert answers[name].tokens == alone.tokens


def test_a_prompt_of_one_token_has_none(checkpoint: Path) -> None:
    (answer,) = engine(checkpoint).generate([[7]], SCORED, 1)
    assert answer.prompt_logprobs == [] and len(answer.tokens) == 1
