"""What a runner chooses and refuses when it is made."""

import pytest
import torch

from radixserve.config import WorkerConfig
from radixserve.models import operators
from radixserve.worker.attention import BACKENDS
from radixserve.worker.runner import Runner
from radixserve_kernels import cpu


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"kv_cache_dtype": "fp8_e4m3"}, "--kv-cache-dtype fp8_e4m3"),
        ({"enable_deterministic_inference": True}, "--enable-deterministic-inference"),
    ],
)
def test_a_backend_refuses_what_it_cannot_do(checkpoint, monkeypatch, changes, flag):
    config = WorkerConfig(device="cpu", attention_backend="torch", **changes)
    monkeypatch.setattr(BACKENDS["triton"], "kv_cache_dtypes", ("auto", "fp8_e4m3"))
    with pytest.raises(ValueError, match=f"torch cannot do {flag}: it needs .* triton"):
        Runner(config, checkpoint)
    monkeypatch.setattr(BACKENDS["triton"], "kv_cache_dtypes", ("auto",))
    for name in ("triton", "cpu"):
        monkeypatch.setattr(BACKENDS[name], "deterministic_operators", "")
    with pytest.raises(ValueError, match=f"torch cannot do {flag}$"):
        Runner(config, checkpoint)


@pytest.mark.parametrize("asked", [False, True])
def test_the_flag_chooses_the_operators(checkpoint, monkeypatch, asked):
    made = []
    for name, make in operators.OPERATORS.items():

        def note(device, name=name, make=make):
            made.append(name)
            return make(device)

        monkeypatch.setitem(operators.OPERATORS, name, note)
    config = WorkerConfig(
        device="cpu",
        attention_backend="triton",
        enable_deterministic_inference=asked,
        page_size=8,
        max_total_tokens=64,
        max_running_requests=2,
        num_threads=1,
    )
    Runner(config, checkpoint)
    assert made == ["triton-deterministic" if asked else "triton"]


@pytest.mark.parametrize("impl", ["auto", "transformers"])
def test_transformers_code_is_not_deterministic(checkpoint, tmp_path, impl):
    """Whether it was asked for, or is all there is for the architecture."""
    if impl == "auto":
        config = (checkpoint / "config.json").read_text()
        (tmp_path / "config.json").write_text(config.replace("LlamaFor", "OtherFor"))
        checkpoint = tmp_path
    config = WorkerConfig(
        device="cpu",
        attention_backend="triton",
        model_impl=impl,
        enable_deterministic_inference=True,
    )
    with pytest.raises(ValueError, match=r"--enable-deterministic-inference needs .* radixserve's"):
        Runner(config, checkpoint)


def test_numbers_of_k_and_v_need_a_backend_that_has_them(checkpoint):
    for name, numbers, able in (
        ("torch", "float16", "cpu"),
        ("triton", "float16", "cpu"),
        ("cpu", "fp8_e4m3", "triton"),
    ):
        config = WorkerConfig(device="cpu", attention_backend=name, kv_cache_dtype=numbers)
        with pytest.raises(ValueError, match=f"{name} cannot do .*{numbers}: it needs .* {able}$"):
            Runner(config, checkpoint)


def test_threads_are_the_backends(checkpoint):
    """torch's would spin beside those of the kernels for CPUs, and take their cores."""
    before = torch.get_num_threads()
    settings = {"device": "cpu", "num_threads": 2, "max_total_tokens": 64}
    try:
        for name, threads in (("torch", 2), ("cpu", 1)):
            Runner(WorkerConfig(attention_backend=name, **settings), checkpoint)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
        cpu.set_threads(1)
