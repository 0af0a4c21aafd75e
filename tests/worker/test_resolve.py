"""What "auto" becomes."""

import pytest
import torch

from radixserve.config import WorkerConfig
from radixserve.worker import resolve


def test_on_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = resolve.resolve(WorkerConfig())
    assert (config.device, config.dtype, config.attention_backend) == ("cpu", "float32", "torch")
    assert (config.max_running_requests, config.mem_fraction_static) == (64, 0.3)
    assert config.num_threads == resolve.usable_cores()
    assert resolve.step_tokens(config) == 512


def test_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = resolve.resolve(WorkerConfig())
    assert (config.device, config.dtype, config.attention_backend) == ("cuda", "bfloat16", "triton")
    assert (config.max_running_requests, config.mem_fraction_static) == (256, 0.85)
    assert resolve.step_tokens(config) == 4096
    assert resolve.resolve(WorkerConfig(device="cpu")).dtype == "float32"


def test_what_is_given_stays(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    given = WorkerConfig(
        device="cpu",
        dtype="bfloat16",
        attention_backend="triton",
        mem_fraction_static=0.5,
        max_running_requests=700,
        chunked_prefill_size=512,
        cuda_graph_max_bs=100,
        num_threads=3,
    )
    assert resolve.resolve(given) == given
    assert resolve.step_tokens(given) == 716, "a page beside a token of every slot"


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no GPU"):
        resolve.resolve(WorkerConfig(device="cuda"))
