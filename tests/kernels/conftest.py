"""Runs the kernels on a GPU if there is one, else in Triton's interpreter; poisons outputs."""

import pytest
import torch


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True, scope="module")
def interpreter_repair():
    """bf16 and row-independent matrix products in the interpreter, which has neither."""
    if torch.cuda.is_available():
        yield
        return
    from tests.kernels.interpreter_repair import repaired

    with repaired():
        yield


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch):
    """Memory from torch.empty is NaN, so that an output the kernel forgets is seen."""
    empty = torch.empty

    def poisoned(*args, **kwargs):
        tensor = empty(*args, **kwargs)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned)
