"""The comparison with transformers, with transformers standing in for the engine as well.

transformers is imported inside the tests: it imports triton, and other rooms have to choose its
interpreter before that.
"""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch


class StandIn:
    """`radixserve.llm.LLM` as the bench calls it."""

    def __init__(self, config: Any) -> None:
        from transformers import AutoModelForCausalLM

        assert config.worker.dtype == "float32" and config.worker.num_threads == 1
        self._model: Any = AutoModelForCausalLM.from_pretrained(config.worker.model_path)

    def generate(self, prompts: list[list[int]], sampling: Any, max_tokens: int) -> list[Any]:
        assert sampling.temperature == 0
        ids = torch.tensor(prompts)
        count = {"min_new_tokens": max_tokens, "max_new_tokens": max_tokens}
        out = self._model.generate(ids, do_sample=False, pad_token_id=0, **count)
        rows = out[:, ids.shape[1] :].tolist()
        return [SimpleNamespace(tokens=row, cached_tokens=0, finish="length") for row in rows]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20000,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def test_both_compute_the_same_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("radixserve.llm")
    module.LLM = StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "radixserve.llm", module)
    monkeypatch.delitem(sys.modules, "bench.compare_transformers", raising=False)
    from bench import compare_transformers

    threads = torch.get_num_threads()
    sizes = {"prefill": 32, "batch": 2, "prompt": 4, "new": 40, "rounds": 3, "threads": 1}
    flags = [f"--{name}={value}" for name, value in sizes.items()]
    try:
        assert compare_transformers.main(["--model", str(folder), *flags]) == 0
    finally:
        torch.set_num_threads(threads)
        sys.modules.pop("bench.compare_transformers")
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["same_answers"] == result["answers"] == 4 * (1 + 2 + 2)
    steps = result["generate_s_engine"]
    assert result["decode_tokens_per_s_engine"] > 2 * 39 / steps, "the first token is taken off"
    ratio = result["prefill_s_transformers"] / result["prefill_s_engine"]
    assert result["prefill_speedup"] == ratio
