"""The engine in one process: what is asked of the scheduler, and what comes back beside tokens."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from radixserve.config import Config, WorkerConfig
from radixserve.llm import LLM
from radixserve.messages import CacheDirectives, Namespace, Pin, Pinned, Sampling, Submit

GREEDY = Sampling(seed=0, temperature=0.0)


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> LLM:
    worker = WorkerConfig(model_path=str(checkpoint), max_total_tokens=1024, num_threads=1)
    return LLM(Config(worker=worker))


def test_namespaces_share_nothing(llm: LLM) -> None:
    prompt = list(range(3, 40))
    for tenant in ("a", "b"):
        for cached in (0, 36):
            namespace = Namespace(tenant=tenant)
            (answer,) = llm.generate([prompt], GREEDY, 1, namespace=namespace)
            assert answer.cached_tokens == cached


def test_directives_go_with_every_prompt_and_pins_are_answered(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler's part is played: it refuses the pins of prompts that begin with 9."""
    submits: list[Submit] = []
    submit = llm.scheduler.submit

    def play(message: Submit) -> None:
        submits.append(message)
        submit(replace(message, cache=CacheDirectives()))
        tokens = 0 if message.prompt[0] == 9 else message.cache.pins[0].tokens
        pinned = Pinned(message.request_id, tokens, "" if tokens else "over the budget")
        llm.scheduler.outbox.append((0, pinned))  # type: ignore[arg-type]

    monkeypatch.setattr(llm.scheduler, "submit", play)
    asked = CacheDirectives(store_until=16, priority=2, pins=(Pin(16, 60.0),))
    namespace = Namespace(tenant="t")
    prompts = [[8] * 20, [9] * 20]
    first, second = llm.generate(prompts, GREEDY, 1, namespace=namespace, priority=3, cache=asked)
    assert [(s.namespace, s.priority, s.cache) for s in submits] == [(namespace, 3, asked)] * 2
    assert [(p.tokens, p.refused) for p in first.pins] == [(16, "")]
    assert [(p.tokens, p.refused) for p in second.pins] == [(0, "over the budget")]
    assert len(first.tokens) == len(second.tokens) == 1


def test_dummy_weights_need_neither_weights_nor_a_tokenizer(
    checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    worker = WorkerConfig(
        model_path=str(tmp_path), load_format="dummy", max_total_tokens=256, num_threads=1
    )
    llm = LLM(Config(worker=worker))
    assert "dummy weights" in llm.runner.detail
    assert llm.runner.ready.fingerprint.startswith("dummy")
    asked = Sampling(seed=0, temperature=0.0, top_logprobs=0)
    (answer,) = llm.generate([[5, 6, 7]], asked, 4)
    assert len(answer.tokens) == 4
    assert all(each.chosen > -20 for each in answer.logprobs)
