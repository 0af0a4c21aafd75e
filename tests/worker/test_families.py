"""Models in transformers' own code on our pages: its logits, its tokens, whatever was reused."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from radixserve.config import Config, WorkerConfig
from radixserve.llm import LLM
from radixserve.messages import Admit, Namespace, Row, RunStep, pack
from radixserve.models.transformers_model import TransformersModel
from radixserve.worker.batch import bring, gather_rows
from radixserve.worker.runner import Runner
from tests.checkpoints import VOCAB_SIZE, tiny_checkpoint
from tests.models.families import FAMILIES
from tests.worker.requests import GREEDY, free

PAGE_SIZE = 8
ANSWER = 10
TOLERANCE = 2e-5  # of the largest logit; float32 sums in another order


class Family:
    """A checkpoint, and what transformers makes of it by itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.eager = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """[vocab], after the last of `tokens`."""
        with torch.inference_mode():
            return self.eager(torch.tensor([tokens])).logits[0, -1]

    def answer(self, tokens: list[int], length: int = ANSWER) -> list[int]:
        asked = {"max_new_tokens": length, "do_sample": False, "eos_token_id": None}
        inputs = torch.tensor([tokens])
        mask = torch.ones_like(inputs)
        found = self.eager.generate(inputs, attention_mask=mask, pad_token_id=0, **asked)
        return found[0, len(tokens) :].tolist()

    def config(self, backend: str = "torch", **settings: object) -> WorkerConfig:
        given = {
            "model_path": str(self.folder),
            "model_impl": "transformers",
            "device": "cpu",
            "attention_backend": backend,
            "page_size": PAGE_SIZE,
            "max_total_tokens": 128 * PAGE_SIZE,
            "max_running_requests": 8,
            "num_threads": 1,
        }
        return WorkerConfig(**given | settings)

    def llm(self, backend: str = "torch", **settings: object) -> LLM:
        llm = LLM(Config(worker=self.config(backend, **settings)))
        assert isinstance(llm.runner._model, TransformersModel)
        for pages in llm.runner._cache.pages:
            pages.fill_(float("nan"))
        return llm


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    arch, overrides = FAMILIES[request.param]
    # no id ends an answer: all answers have the same length
    overrides = {"eos_token_id": None, **overrides}
    return Family(tiny_checkpoint(tmp_path_factory.mktemp(request.param), arch, **overrides))


@pytest.fixture(scope="module")
def make_family(tmp_path_factory):
    def make(name: str) -> Family:
        arch, overrides = FAMILIES[name]
        overrides = {"eos_token_id": None, **overrides}
        return Family(tiny_checkpoint(tmp_path_factory.mktemp(name), arch, **overrides))

    return make


def prompt(length: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


@torch.inference_mode()
def step_logits(runner: Runner, rows: list[tuple[int, int, list[int]]]) -> torch.Tensor:
    """[R, vocab] after the last tokens of one step's rows: (slot, tokens computed before, new)."""
    made = []
    for slot, start, new in rows:
        first, stop = -(-start // PAGE_SIZE), -(-(start + len(new)) // PAGE_SIZE)
        pages = [16 * slot + i for i in range(first, stop)]
        made.append(Row(slot, start, pack(new), pack(pages)))
    admits = tuple(Admit(slot, GREEDY) for slot, start, _ in rows if not start)
    runner._change_slots(RunStep(0, tuple(made), admits))
    host = gather_rows(made, runner._slots, page_size=PAGE_SIZE)
    attend = runner._attention.plan(host).bind(
        batch := bring(host, runner._sampler.last_tokens, runner._slots.device_table)
    )
    return runner._model(batch.tokens, batch.positions, attend, batch.wanted)


def check_logits(family: Family, runner: Runner, lengths: list[list[int]]) -> None:
    """Texts that grow step by step to `lengths`, one list a step; 0: not yet in it."""
    texts = [prompt(max(column), seed) for seed, column in enumerate(zip(*lengths, strict=True))]
    before = [0] * len(texts)
    for after in lengths:
        rows = [
            (slot, begin, texts[slot][begin:end])
            for slot, (begin, end) in enumerate(zip(before, after, strict=True))
            if end > begin
        ]
        found = step_logits(runner, rows)
        expected = torch.stack([family.logits(texts[slot][: after[slot]]) for slot, *_ in rows])
        assert found.dtype == torch.float32 and found.shape == expected.shape
        assert (found - expected).abs().max() <= TOLERANCE * expected.abs().max(), after
        before = after
    free(runner, *range(len(texts)))


def test_logits_of_steps_that_mix_rows(family):
    lengths = [[1, 20, 45], [2, 33, 46], [9, 34, 47], [10, 63, 64], [60, 64, 65]]
    check_logits(family, family.llm().runner, lengths)


def test_answers_do_not_depend_on_what_was_cached(family):
    text = prompt(60)
    expected = family.answer(text)
    llm = family.llm()
    for split in (0, 1, 7, 8, 21, 48, 59):
        namespace = Namespace(tenant=str(split))
        if split:
            llm.generate([text[:split]], GREEDY, 1, namespace=namespace)
        (got,) = llm.generate([text], GREEDY, ANSWER, namespace=namespace)
        assert (got.cached_tokens, got.tokens) == (split, expected)


def test_answers_do_not_depend_on_chunks_and_neighbours(family):
    texts = [prompt(length, seed) for seed, length in enumerate((60, 3, 41, 60))]
    texts[3] = texts[0][:50] + texts[3][50:]
    expected = [family.answer(text) for text in texts]
    llm = family.llm(max_running_requests=3, chunked_prefill_size=11)
    assert llm.runner.ready.step_tokens == 11
    got = llm.generate(texts, GREEDY, ANSWER)
    assert [answer.tokens for answer in got] == expected
    assert got[3].cached_tokens >= 50
    again = llm.generate(texts, GREEDY, ANSWER)
    assert [answer.tokens for answer in again] == expected
    assert [answer.cached_tokens for answer in again] == [len(text) - 1 for text in texts]


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_triton_backend(make_family, name):
    family = make_family(name)
    llm = family.llm("triton", max_running_requests=2)
    check_logits(family, llm.runner, [[1, 26], [29, 27]])
    text = prompt(30)
    llm.generate([text[:17]], GREEDY, 1)
    (got,) = llm.generate([text], GREEDY, 2)
    assert (got.cached_tokens, got.tokens) == (17, family.answer(text, 2))


def test_llama_equals_our_decoder(make_family):
    family = make_family("llama")
    ours = LLM(Config(worker=family.config(model_impl="radixserve")))
    theirs = family.llm()
    rows = [(0, 0, prompt(30)), (1, 0, prompt(7, 2))]
    a, b = (step_logits(llm.runner, rows) for llm in (ours, theirs))
    assert (a - b).abs().max() <= TOLERANCE * a.abs().max()
    assert ours.runner.ready.fingerprint == theirs.runner.ready.fingerprint
    sizes = ("num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "hidden_size")
    specs = [llm.runner._model.spec for llm in (ours, theirs)]
    assert len({tuple(getattr(spec, name) for name in sizes) for spec in specs}) == 1
