"""What "auto" becomes."""

import msgspec
import pytest
import torch

from radixserve.config import WorkerConfig
from radixserve.worker import resolve
from radixserve_kernels import cpu as cpu_kernels


def test_on_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = resolve.resolve(WorkerConfig())
    assert (config.device, config.dtype, config.attention_backend) == ("cpu", "float32", "cpu")
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


def test_where_the_kernels_for_cpus_cannot_be_had(monkeypatch, caplog):
    monkeypatch.setattr(cpu_kernels, "available", lambda: "no C compiler was found")
    assert resolve.resolve(WorkerConfig(device="cpu")).attention_backend == "torch"
    assert "no C compiler was found" in caplog.text
    with pytest.raises(ValueError, match="--attention-backend cpu: no C compiler"):
        resolve.resolve(WorkerConfig(device="cpu", attention_backend="cpu"))


def test_the_kernels_for_cpus_compute_in_float32(caplog):
    config = WorkerConfig(device="cpu", dtype="bfloat16")
    assert resolve.resolve(config).attention_backend == "torch" and not caplog.text
    with pytest.raises(ValueError, match="in float32"):
        resolve.resolve(msgspec.structs.replace(config, attention_backend="cpu"))
