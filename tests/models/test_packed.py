"""Packed weights that are kept: the same logits from them, and what happens where none can be."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from radixserve.models import packed
from radixserve.models.decoder import Decoder
from radixserve.models.load import load
from radixserve.models.operators import OPERATORS
from radixserve_kernels import cpu
from tests.checkpoints import tiny_checkpoint
from tests.models.dense import DenseAttention

if missing := cpu.available():
    pytest.skip(missing, allow_module_level=True)

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "Qwen2ForCausalLM": {"tie_word_embeddings": True},  # biases
    "Qwen3ForCausalLM": {"head_dim": 32},  # norms of queries and keys
}


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "LEAST_BYTES", 0)


def made(folder: Path, kept: Path | None, operators: str = "cpu") -> Decoder:
    ops = OPERATORS[operators](torch.device("cpu"))
    return load(
        folder, device="cpu", dtype=torch.float32, context_length=64, operators=ops, kept=kept
    )


@torch.inference_mode()
def logits(decoder: Decoder) -> torch.Tensor:
    tokens = torch.arange(5, 25)
    return decoder(tokens, torch.arange(20), DenseAttention(), torch.arange(20))


def no_packing(*_: object, **__: object) -> None:
    raise AssertionError("it was packed before")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_second_start_maps_what_the_first_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    folder = tiny_checkpoint(tmp_path / "model", architecture, **ARCHITECTURES[architecture])
    plain, first = made(folder, None), made(folder, tmp_path / "kept")
    (file,) = (tmp_path / "kept").iterdir()
    monkeypatch.setattr(cpu.PackedLinear, "pack", no_packing)
    second = made(folder, tmp_path / "kept")
    assert torch.equal(logits(first), logits(plain))
    assert torch.equal(logits(second), logits(plain))
    assert first.weight_bytes == second.weight_bytes == plain.weight_bytes
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(file) in maps.read_text(), "not a copy"


def test_another_checkpoint_in_its_place(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "model", num_hidden_layers=1)
    made(folder, tmp_path / "kept")
    (before,) = (tmp_path / "kept").iterdir()
    shutil.rmtree(folder)
    tiny_checkpoint(folder, num_hidden_layers=2)
    assert torch.equal(logits(made(folder, tmp_path / "kept")), logits(made(folder, None)))
    (after,) = (tmp_path / "kept").iterdir()
    assert after != before, "and the old one is gone"


def test_two_checkpoints_have_a_file_each(tmp_path: Path) -> None:
    for layers in (1, 2, 1):
        folder = tmp_path / str(layers)
        if not folder.exists():
            tiny_checkpoint(folder, num_hidden_layers=layers)
        found = made(folder, tmp_path / "kept")
        assert torch.equal(logits(found), logits(made(folder, None)))
    assert len(list((tmp_path / "kept").iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"\x08\0\0\0\0\0\0\0{}      ", b"\xff" * 3000])
def test_a_damaged_file_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    folder = tiny_checkpoint(tmp_path / "model")
    made(folder, tmp_path / "kept")
    (file,) = (tmp_path / "kept").iterdir()
    size = file.stat().st_size
    file.write_bytes(content)
    assert torch.equal(logits(made(folder, tmp_path / "kept")), logits(made(folder, None)))
    assert "cannot be read and is made again" in caplog.text
    assert file.stat().st_size == size


def test_where_nothing_can_be_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tiny_checkpoint(tmp_path / "model")
    (tmp_path / "file").touch()
    assert torch.equal(logits(made(folder, tmp_path / "file")), logits(made(folder, None)))
    assert "the packed weights are not kept" in caplog.text


def test_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_checkpoint(tmp_path / "model")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    made(folder, tmp_path / "kept")
    assert "has too little room" in caplog.text
    assert not list((tmp_path / "kept").iterdir())


def test_small_models_and_other_operators_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    folder = tiny_checkpoint(tmp_path / "model")
    made(folder, tmp_path / "kept", "torch")
    monkeypatch.setattr(packed, "LEAST_BYTES", 32 << 20)
    made(folder, tmp_path / "kept")
    assert not (tmp_path / "kept").exists() and not caplog.text
