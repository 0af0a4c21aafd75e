"""The worker's "auto" settings made concrete, in one place. Called by the runner when it starts."""

import logging
import os
from pathlib import Path

import msgspec
import torch

from radixserve.config import WorkerConfig
from radixserve.worker import cgroup
from radixserve_kernels import cpu as cpu_kernels

log = logging.getLogger("radixserve.worker")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve(config: WorkerConfig) -> WorkerConfig:
    """The config with device, dtype, backend, share of memory, slots and threads chosen.

    Raises ValueError with a sentence if the device that was asked for is not there.
    """
    has_gpu = torch.cuda.is_available()
    if config.device == "cuda" and not has_gpu:
        raise ValueError("--device cuda: this machine or this torch has no GPU; use --device cpu")
    gpu = config.device == "cuda" or (config.device == "auto" and has_gpu)
    dtype = _auto(config.dtype, "bfloat16" if gpu else "float32")
    return msgspec.structs.replace(
        config,
        device="cuda" if gpu else "cpu",
        dtype=dtype,
        attention_backend=_backend(config.attention_backend, dtype, gpu=gpu),
        mem_fraction_static=config.mem_fraction_static or (0.85 if gpu else 0.3),
        max_running_requests=config.max_running_requests or (256 if gpu else 64),
        chunked_prefill_size=config.chunked_prefill_size or (4096 if gpu else 512),
        cuda_graph_max_bs=config.cuda_graph_max_bs or (256 if gpu else 8),
        num_threads=config.num_threads or usable_cores(),
    )


def _backend(asked: str, dtype: str, *, gpu: bool) -> str:
    """The attention backend; ValueError if the CPU's is asked for and cannot be had."""
    if gpu and asked in ("auto", "triton"):
        return "triton"
    if asked not in ("auto", "cpu"):
        return asked
    if dtype != "float32" or gpu:
        missing = "it computes in float32, on a CPU"
    else:
        missing = cpu_kernels.available()
    if not missing:
        return "cpu"
    if asked == "cpu":
        raise ValueError(f"--attention-backend cpu: {missing}")
    if dtype == "float32":
        log.warning("torch computes instead of the kernels for CPUs: %s", missing)
    return "torch"


def usable_cores(root: Path = cgroup.ROOT) -> int:
    """Cores that this process may keep busy: more threads than that make every step slower."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        cores = len(os.sched_getaffinity(0))
    quota = cgroup.cpu_quota(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def step_tokens(config: WorkerConfig) -> int:
    """Most tokens in one step of a resolved config: a page fits beside a token for every slot."""
    return max(config.chunked_prefill_size, config.max_running_requests + config.page_size)


def _auto(value: str, choice: str) -> str:
    return choice if value == "auto" else value
