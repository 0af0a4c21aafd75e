"""Reuse is exact: greedy answers do not depend on what was cached, how it was cut, or the batch."""

from pathlib import Path

import pytest

from radixserve.config import Config, WorkerConfig
from radixserve.llm import LLM, Answer
from radixserve.messages import Sampling

GREEDY = Sampling(seed=0, temperature=0.0, top_logprobs=0)
PAGE = 16
PROMPT = [(37 * i + i * i) % 500 + 3 for i in range(3 * PAGE + 5)]
ANSWER = 24


def engine(folder: Path, tokens: int = 4096, **more: int) -> LLM:
    worker = WorkerConfig(model_path=str(folder), max_total_tokens=tokens, num_threads=1, **more)
    return LLM(Config(worker=worker))


@pytest.fixture(scope="module")
def cold(checkpoint: Path) -> Answer:
    return engine(checkpoint).generate([PROMPT], GREEDY, ANSWER)[0]


def same(answer: Answer, cold: Answer) -> None:
    assert answer.tokens == cold.tokens
    ours, theirs = ([one.chosen for one in a.logprobs] for a in (answer, cold))
    assert ours == pytest.approx(theirs, abs=2e-4)


def test_every_split_into_cached_and_computed(checkpoint: Path, cold: Answer) -> None:
    """A first request leaves exactly `split` tokens of the prompt, over more than two pages."""
    assert len(set(cold.tokens)) > 5, "the test model says something"
    for split in range(1, len(PROMPT) + 1):
        llm = engine(checkpoint)
        llm.generate([[*PROMPT[:split], 2]], GREEDY, 1)
        answer = llm.generate([PROMPT], GREEDY, ANSWER)[0]
        assert answer.cached_tokens == min(split, len(PROMPT) - 1), "to the token, by a copy"
        same(answer, cold)


@pytest.mark.parametrize("chunk", [16, 17, 23, 32, 48, 53, 512])
def test_every_chunk_size(checkpoint: Path, cold: Answer, chunk: int) -> None:
    llm = engine(checkpoint, chunked_prefill_size=chunk, max_running_requests=4)
    same(llm.generate([PROMPT], GREEDY, ANSWER)[0], cold)


def test_alone_and_in_a_batch_hot_and_cold(checkpoint: Path, cold: Answer) -> None:
    llm = engine(checkpoint)
    others = [[*PROMPT[:cut], 400 + cut] for cut in (1, 15, 16, 17, 31, 40)]
    for _ in range(2):
        for answer in llm.generate([PROMPT, *others, PROMPT], GREEDY, ANSWER)[:: len(others) + 1]:
            same(answer, cold)


def test_the_next_turn_over_a_decoded_answer(checkpoint: Path, cold: Answer) -> None:
    turn = [*PROMPT, *cold.tokens, 77, 78, 79]
    fresh = engine(checkpoint).generate([turn], GREEDY, ANSWER)[0]
    llm = engine(checkpoint)
    llm.generate([PROMPT], GREEDY, ANSWER)
    hot = llm.generate([turn], GREEDY, ANSWER)[0]
    assert hot.cached_tokens == len(PROMPT) + ANSWER - 1
    same(hot, fresh)


def test_after_eviction_and_computing_again(checkpoint: Path, cold: Answer) -> None:
    llm = engine(checkpoint, tokens=10 * PAGE)
    same(llm.generate([PROMPT], GREEDY, ANSWER)[0], cold)
    for start in range(5):
        llm.generate([[start + 5] * (4 * PAGE)], GREEDY, ANSWER)
    assert llm.scheduler.cache.evicted_pages > 0
    again = llm.generate([PROMPT], GREEDY, ANSWER)[0]
    assert again.cached_tokens < len(PROMPT) // PAGE * PAGE
    same(again, cold)


def test_preempted_and_resumed(checkpoint: Path, cold: Answer) -> None:
    llm = engine(checkpoint, tokens=13 * PAGE)
    prompts = [PROMPT, [*PROMPT[::-1]], [5, *PROMPT]]
    answers = llm.generate(prompts, GREEDY, 2 * ANSWER)
    assert llm.scheduler.counters.preemptions > 0
    for prompt, answer in zip(prompts, answers, strict=True):
        same(answer, engine(checkpoint).generate([prompt], GREEDY, 2 * ANSWER)[0])
    assert answers[0].tokens[:ANSWER] == cold.tokens
