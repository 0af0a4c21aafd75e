"""How each server is started on this machine, with the same weights and threads for all."""

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.rivals.weights import Weights

OURS = "radixserve"
CONTEXT = 4096
PORT = "PORT"  # in a command: the port of that start
PINNED = {"ignore_eos": True, "min_tokens": "$max_tokens"}  # the stick puts the number in
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "LD_PRELOAD")
EVERYWHERE = {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
VERSION_OF = "import importlib.metadata as m; print(m.version({!r}))"


@dataclass(frozen=True)
class Server:
    """One server: the command that starts it, and what has to be known to ask it."""

    name: str
    needs: Path  # not installed where this is not there
    command: tuple[str, ...]
    model: str  # as requests name it
    version: tuple[str, ...]  # a command that prints it
    environment: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=lambda: dict(PINNED))  # of every request

    @property
    def family(self) -> str:
        """What `--only` may call it: `llama.cpp` is both of its runs."""
        return self.name.split()[0].lower()

    def launch(self, port: int) -> str:
        """The command line of one start."""
        words = ["env", *(word for name in UNSET for word in ("-u", name))]
        words += [f"{name}={value}" for name, value in (EVERYWHERE | self.environment).items()]
        words += [str(port) if word == PORT else word for word in self.command]
        return shlex.join(words)

    def told_version(self) -> str:
        """What it says of its version, a line; empty where it says nothing."""
        try:
            done = subprocess.run(self.version, capture_output=True, text=True, timeout=120)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        lines = (done.stdout + done.stderr).strip().splitlines()
        numbered = [line for line in lines if line.startswith("version")]
        return (numbered or lines or [""])[-1].removeprefix("version:").strip()


def python_version(python: Path, package: str) -> tuple[str, ...]:
    return (str(python), "-c", VERSION_OF.format(package))


def servers(folder: Path, weights: Weights, threads: int) -> list[Server]:
    """radixserve, and every rival that could lie under `folder`, in the order of a round."""
    return [
        ours(threads),
        vllm(folder / "vllm", weights, threads),
        *(
            llama_cpp(folder / "llama.cpp/bin/llama-server", kind, file, threads)
            for kind, file in (("f32", weights.dense), ("Q4_1", weights.blocks))
        ),
        transformers(folder / "transformers", weights, threads),
        sglang(folder / "sglang", weights, threads),
    ]


def ours(threads: int) -> Server:
    """This checkout on the embedded model."""
    python = Path(sys.executable)
    command = (str(python), "-m", "radixserve.launch", "--port", PORT, "--dtype", "float32")
    return Server(
        name=OURS,
        needs=python,
        command=(*command, "--num-threads", str(threads)),
        model="SmolLM2-135M-Instruct",
        version=(str(python), "-c", "import radixserve; print(radixserve.__version__)"),
    )


def vllm(home: Path, weights: Weights, threads: int) -> Server:
    python = home / "bin/python"
    libraries = [
        file
        for pattern in ("libtcmalloc*.so.4", "libiomp5.so")
        for file in sorted((home / "lib").glob(pattern))
    ]
    options = {
        "--model": str(weights.folder),
        "--dtype": "float32",
        "--max-model-len": str(CONTEXT),
        "--max-num-seqs": "8",
        "--host": "127.0.0.1",
        "--port": PORT,
    }
    command = (str(python), "-m", "vllm.entrypoints.openai.api_server", *flat(options))
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_NO_USAGE_STATS": "1",
    }
    if libraries:
        environment["LD_PRELOAD"] = ":".join(map(str, libraries))
    return Server(
        name="vLLM",
        needs=python,
        command=(*command, "--enable-prompt-tokens-details"),
        model=str(weights.folder),
        version=python_version(python, "vllm-cpu"),
        environment=environment,
    )


def llama_cpp(program: Path, kind: str, file: Path, threads: int) -> Server:
    options = {
        "-m": str(file),
        "-t": str(threads),
        "-tb": str(threads),
        "-np": "4",
        "-c": str(4 * CONTEXT),
        "--host": "127.0.0.1",
        "--port": PORT,
    }
    return Server(
        name=f"llama.cpp {kind}",
        needs=program,
        command=(str(program), *flat(options), "-kvu"),
        model="SmolLM2-135M-Instruct",
        version=(str(program), "--version"),
    )


def transformers(home: Path, weights: Weights, threads: int) -> Server:
    python = home / "bin/python"
    options = {
        "--attn-implementation": "sdpa",
        "--device": "cpu",
        "--dtype": "float32",
        "--host": "127.0.0.1",
        "--port": PORT,
    }
    command = (str(home / "bin/transformers"), "serve", str(weights.folder))
    # it has no field that pins the length; an end that no token has does
    generation = json.dumps({"eos_token_id": -1, "do_sample": False})
    return Server(
        name="transformers",
        needs=python,
        command=(*command, "--continuous-batching", *flat(options)),
        model=str(weights.folder),
        version=python_version(python, "transformers"),
        environment={"OMP_NUM_THREADS": str(threads)},
        extra={"generation_config": generation},
    )


def sglang(home: Path, weights: Weights, threads: int) -> Server:
    python = home / "bin/python"
    options = {
        "--model-path": str(weights.folder),
        "--device": "cpu",
        "--dtype": "float32",
        "--attention-backend": "torch_native",
        "--context-length": str(CONTEXT),
        "--max-running-requests": "8",
        "--max-total-tokens": "46592",
        "--host": "127.0.0.1",
        "--port": PORT,
    }
    return Server(
        name="SGLang",
        needs=python,
        command=(
            *(str(python), "-m", "sglang.launch_server", *flat(options)),
            "--enable-cache-report",
        ),
        model=str(weights.folder),
        version=python_version(python, "sglang"),
        environment={"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": str(threads)},
    )


def flat(options: dict[str, str]) -> list[str]:
    return [word for pair in options.items() for word in pair]
