"""A tiny checkpoint and runners on it, whose pages hold NaN until they are written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from radixserve.config import WorkerConfig
from radixserve.worker.runner import Runner
from tests.checkpoints import tiny_checkpoint

PAGE_SIZE = 8


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def make_runner(checkpoint: Path) -> Callable[..., Runner]:
    """A fresh runner with 64 pages of 8 tokens, all NaN."""

    def make(backend: str = "torch", **settings: Any) -> Runner:
        config = WorkerConfig(
            device="cpu",
            attention_backend=backend,
            page_size=PAGE_SIZE,
            max_total_tokens=64 * PAGE_SIZE,
            max_running_requests=8,
            num_threads=1,
            **settings,
        )
        runner = Runner(config, checkpoint)
        for pages in runner._cache.pages:
            pages.fill_(0x7F if pages.dtype == torch.uint8 else float("nan"))
        for scales in runner._cache.scales:
            scales.fill_(float("nan"))
        return runner

    return make
