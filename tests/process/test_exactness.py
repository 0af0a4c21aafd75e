"""Reuse is exact: greedy answers do not depend on what was cached, how it was cut, or the batch.

By the kernels for CPUs to the last bit; by torch's operators nearly.
"""

from pathlib import Path
from typing import Any

import pytest

from radixserve.config import Config, WorkerConfig
from radixserve.llm import LLM, Answer
from radixserve.messages import Sampling
from radixserve_kernels.cpu import available

GREEDY = Sampling(seed=0, temperature=0.0, top_logprobs=0)
PAGE = 16
PROMPT = [(37 * i + i * i) % 500 + 3 for i in range(3 * PAGE + 5)]
ANSWER = 24


def engine(folder: Path, tokens: int = 4096, **more: Any) -> LLM:
    settings = {"max_total_tokens": tokens, "num_threads": 1} | more
    return LLM(Config(worker=WorkerConfig(model_path=str(folder), **settings)))


class Backend:
    """Engines with one attention backend."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.cold = self.engine().generate([PROMPT], GREEDY, ANSWER)[0]

    def engine(self, **more: Any) -> LLM:
        return engine(self.folder, attention_backend=self.name, **more)

    def same(self, answer: Answer, cold: Answer | None = None) -> None:
        cold = cold or self.cold
        assert answer.tokens == cold.tokens
        ours, theirs = ([one.chosen for one in a.logprobs] for a in (answer, cold))
        assert ours == (theirs if self.name == "cpu" else pytest.approx(theirs, abs=2e-4))


@pytest.fixture(scope="module", params=["cpu", "torch"])
def backend(request: pytest.FixtureRequest, checkpoint: Path) -> Backend:
    if request.param == "cpu" and (missing := available()):
        pytest.skip(missing)
    return Backend(request.param, checkpoint)


def test_every_split_into_cached_and_computed(backend: Backend) -> None:
    """A first request leaves exactly `split` tokens of the prompt, over more than two pages."""
    assert len(set(backend.cold.tokens)) > 5, "the test model says something"
    for split in range(1, len(PROMPT) + 1):
        llm = backend.engine()
        llm.generate([[*PROMPT[:split], 2]], GREEDY, 1)
        answer = llm.generate([PROMPT], GREEDY, ANSWER)[0]
        assert answer.cached_tokens == min(split, len(PROMPT) - 1), "to the token, by a copy"
        backend.same(answer)


@pytest.mark.parametrize("chunk", [16, 17, 23, 32, 48, 53, 512])
def test_every_chunk_size(backend: Backend, chunk: int) -> None:
    llm = backend.engine(chunked_prefill_size=chunk, max_running_requests=4)
    backend.same(llm.generate([PROMPT], GREEDY, ANSWER)[0])


def test_alone_and_in_a_batch_hot_and_cold(backend: Backend) -> None:
    llm = backend.engine()
    others = [[*PROMPT[:cut], 400 + cut] for cut in (1, 15, 16, 17, 31, 40)]
    for _ in range(2):
        for answer in llm.generate([PROMPT, *others, PROMPT], GREEDY, ANSWER)[:: len(others) + 1]:
            backend.same(answer)


def test_the_next_turn_over_a_decoded_answer(backend: Backend) -> None:
    turn = [*PROMPT, *backend.cold.tokens, 77, 78, 79]
    fresh = backend.engine().generate([turn], GREEDY, ANSWER)[0]
    llm = backend.engine()
    llm.generate([PROMPT], GREEDY, ANSWER)
    hot = llm.generate([turn], GREEDY, ANSWER)[0]
    assert hot.cached_tokens == len(PROMPT) + ANSWER - 1
    backend.same(hot, fresh)


def test_after_eviction_and_computing_again(backend: Backend) -> None:
    llm = backend.engine(tokens=10 * PAGE)
    backend.same(llm.generate([PROMPT], GREEDY, ANSWER)[0])
    for start in range(5):
        llm.generate([[start + 5] * (4 * PAGE)], GREEDY, ANSWER)
    assert llm.scheduler.cache.evicted_pages > 0
    again = llm.generate([PROMPT], GREEDY, ANSWER)[0]
    assert again.cached_tokens < len(PROMPT) // PAGE * PAGE
    backend.same(again)


def test_preempted_and_resumed(backend: Backend) -> None:
    llm = backend.engine(tokens=13 * PAGE)
    prompts = [PROMPT, [*PROMPT[::-1]], [5, *PROMPT]]
    answers = llm.generate(prompts, GREEDY, 2 * ANSWER)
    assert llm.scheduler.counters.preemptions > 0
    for prompt, answer in zip(prompts, answers, strict=True):
        backend.same(answer, backend.engine().generate([prompt], GREEDY, 2 * ANSWER)[0])
    assert answers[0].tokens[:ANSWER] == backend.cold.tokens
