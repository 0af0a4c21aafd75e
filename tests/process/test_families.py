"""A model that only transformers' code knows, on three real processes; and one that is refused."""

from pathlib import Path

import pytest
from transformers import AutoConfig

from tests.checkpoints import tiny_checkpoint
from tests.process.conftest import start

pytestmark = pytest.mark.process

TEXT = "The quick brown fox jumps over the lazy dog. " * 3


def test_gpt2_is_served(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "GPT2LMHeadModel")
    server = start(folder, "--max-total-tokens", "1024")
    try:
        body: dict[str, object] = {"prompt": TEXT, "max_tokens": 8, "temperature": 0}
        cold, hot = (server.post("/v1/completions", body).json() for _ in range(2))
        assert cold["choices"][0]["text"] == hot["choices"][0]["text"]
        prompt_tokens = cold["usage"]["prompt_tokens"]
        cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (cold, hot)]
        assert cached == [0, prompt_tokens - 1]
        assert any("worker ready: GPT2LMHeadModel," in line for line in server.log)
        assert server.stop() == 0
    finally:
        server.process.kill()


def test_what_cannot_be_served_is_said(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path)
    AutoConfig.for_model("mamba", architectures=["MambaForCausalLM"]).save_pretrained(folder)
    server = start(folder)
    try:
        assert server.ended(180) == 1
        reason = "the worker cannot start: MambaForCausalLM keeps a state that is not keys and"
        assert any(reason in line for line in server.log)
    finally:
        server.process.kill()
