"""By the kernels for CPUs an answer has the same bits whatever else the engine did, or does.

Trees of conversations drawn at random, sent in batches drawn at random, to engines that differ in
threads, page size, chunks and instructions; each answer's log probabilities, the prompt's too, are
those of the same request alone in a fresh engine.
"""

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.llm import Answer
from radixserve.messages import Sampling
from radixserve.models.decoder import Decoder
from radixserve_kernels import cpu
from tests.checkpoints import tiny_checkpoint
from tests.process.conftest import Server
from tests.process.test_exactness import engine

if missing := cpu.available():
    pytest.skip(missing, allow_module_level=True)

VOCABULARY = range(3, 500)
ANSWER = 6
SAMPLINGS = {
    "greedy": Sampling(seed=0, temperature=0.0, top_logprobs=3),
    "drawn": Sampling(seed=7, temperature=1.0, top_p=0.9, top_logprobs=3),
    "prompt": Sampling(seed=0, temperature=0.0, top_logprobs=1, prompt_logprobs=2),
}


@pytest.fixture(autouse=True)
def best_body() -> Iterator[None]:
    yield
    cpu.load()


@st.composite
def trees(draw: st.DrawFn) -> list[list[int]]:
    """Prompts, most of which begin with a part of an earlier one."""
    prompts: list[list[int]] = []
    for _ in range(draw(st.integers(2, 6))):
        base = draw(st.sampled_from(prompts)) if prompts and draw(st.booleans()) else []
        cut = draw(st.integers(0, len(base)))
        first, step = draw(st.integers(0, 496)), draw(st.integers(1, 100))
        new = [VOCABULARY[(first + i * step) % 497] for i in range(draw(st.integers(1, 150)))]
        prompts.append(base[:cut] + new)
    return prompts


def bits(answer: Answer) -> object:
    return answer.tokens, answer.logprobs, answer.prompt_logprobs


class Alone:
    """What each request is answered in an engine that has done nothing else."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self._folder = folder
        self._more = more

    def __call__(self, prompt: list[int], kind: str) -> object:
        llm = engine(self._folder, **self._more)
        return bits(llm.generate([prompt], SAMPLINGS[kind], ANSWER)[0])


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_every_answer_is_that_of_a_fresh_engine(checkpoint: Path, data: st.DataObject) -> None:
    prompts = data.draw(trees(), "prompts")
    numbers = data.draw(st.sampled_from(["auto", "float16"]), "K/V")
    llm = engine(
        checkpoint,
        kv_cache_dtype=numbers,
        num_threads=data.draw(st.integers(1, 3), "threads"),
        page_size=data.draw(st.sampled_from([4, 16, 32]), "page size"),
        chunked_prefill_size=data.draw(st.sampled_from([40, 64, 512]), "chunk"),
        max_running_requests=8,
    )
    cpu.load(data.draw(st.sampled_from(fused_bodies()), "body"))
    answered = []
    for _ in range(data.draw(st.integers(1, 3), "batches")):
        batch = data.draw(st.lists(st.sampled_from(prompts), min_size=1, max_size=6), "batch")
        kinds = [data.draw(st.sampled_from(sorted(SAMPLINGS))) for _ in batch]
        answers = llm.generate(batch, [SAMPLINGS[kind] for kind in kinds], ANSWER)
        answered += zip(batch, kinds, map(bits, answers), strict=True)
    cpu.load()
    alone = Alone(checkpoint, kv_cache_dtype=numbers)
    for prompt, kind, found in answered:
        assert found == alone(prompt, kind)


def fused_bodies() -> list[str]:
    """Those with fused multiply-add, which agree to the last bit."""
    return [body for body in cpu.bodies() if body != "portable"] or ["portable"]


def test_a_long_conversation_that_is_decoded_chunked_and_shared(checkpoint: Path) -> None:
    """Turns over decoded answers, eight branches at once over more than two chunks of K/V."""
    llm = engine(checkpoint, num_threads=2, chunked_prefill_size=64)
    root = [VOCABULARY[i * i % 497] for i in range(150)]
    root += llm.generate([root], SAMPLINGS["greedy"], 20)[0].tokens
    branches = [[*root, 10 + i, *range(20, 20 + 5 * i)] for i in range(8)]
    answers = llm.generate(branches, SAMPLINGS["greedy"], ANSWER)
    assert all(answer.cached_tokens >= 169 for answer in answers)
    alone = Alone(checkpoint)
    for branch, answer in zip(branches, answers, strict=True):
        assert bits(answer) == alone(branch, "greedy")


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "Qwen2ForCausalLM": {"tie_word_embeddings": True},  # biases
    "Qwen3ForCausalLM": {"head_dim": 32},  # norms of queries and keys
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_in_one_call_are_the_operators_one_by_one(tmp_path: Path, architecture: str) -> None:
    folder = tiny_checkpoint(tmp_path, architecture, **ARCHITECTURES[architecture])
    prompts = [[VOCABULARY[(i + k) * i % 497] for i in range(70 + 9 * k)] for k in range(4)]
    prompts += [[*prompts[0][:33], 7, 8], prompts[1]]
    answers = []
    for joined in (True, False):
        llm = engine(folder, chunked_prefill_size=64, num_threads=2)
        model = llm.runner._model
        assert isinstance(model, Decoder) and model._joined_layers is not None
        if not joined:
            model._joined_layers = None
        answers.append(
            [
                bits(answer)
                for kind in ("prompt", "greedy", "drawn")
                for answer in llm.generate(prompts, SAMPLINGS[kind], ANSWER)
            ]
        )
    assert answers[0] == answers[1]


def test_over_http_log_probabilities_are_the_same_hot_cold_and_together(server: Server) -> None:
    """Cold again by a salt of its own, at a real server with many requests at once."""
    root = [VOCABULARY[(i * i + 5) % 497] for i in range(100)]
    prompts = [[*root, *range(10 + i, 10 + 4 * i + 3)] for i in range(8)]

    def ask(prompt: list[int], salt: str | None = None) -> tuple[object, int]:
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 5}
        told = server.post("/v1/completions", body | ({"cache_salt": salt} if salt else {})).json()
        cached: int = told["usage"]["prompt_tokens_details"]["cached_tokens"]
        return told["choices"][0]["logprobs"], cached

    cold = [ask(prompt, f"salt {i}") for i, prompt in enumerate(prompts)]
    assert not any(cached for _, cached in cold)
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(ask, prompts))
        hot = list(pool.map(ask, prompts))
    assert all(cached == len(prompt) - 1 for prompt, (_, cached) in zip(prompts, hot, strict=True))
    for answers in (together, hot):
        assert [logprobs for logprobs, _ in answers] == [logprobs for logprobs, _ in cold]


def test_kv_in_half_the_bytes(checkpoint: Path) -> None:
    """Other bits than float32's, near them."""
    whole, half = (
        engine(checkpoint, kv_cache_dtype=numbers).generate(
            [[*VOCABULARY[:200]]], SAMPLINGS["prompt"], 1
        )[0]
        for numbers in ("auto", "float16")
    )
    pairs = [
        (one.chosen, other.chosen)
        for one, other in zip(whole.prompt_logprobs, half.prompt_logprobs, strict=True)
        if one and other
    ]
    assert len(pairs) == 199
    assert max(abs(one - other) for one, other in pairs) < 2e-2
    assert any(one != other for one, other in pairs)
