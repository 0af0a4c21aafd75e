"""The import contracts in pyproject.toml, on a stub of the finished tree: each holds and bites."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEGAL = {
    "radixserve/__init__.py": "",
    "radixserve/config.py": "import msgspec",
    "radixserve/messages.py": "import msgspec",
    "radixserve/channel.py": "import zmq.asyncio",
    "radixserve/launch.py": "from radixserve import cache, channel, config, models",
    "radixserve/child.py": "",
    "radixserve/__main__.py": "from radixserve import cli, doctor, launch, simulate",
    "radixserve/cli/__init__.py": "import http.client\nfrom radixserve import config",
    "radixserve/doctor/__init__.py": "from radixserve import api, launch, worker",
    "radixserve/llm.py": "import torch\nfrom radixserve import scheduler, worker, config",
    "radixserve/simulate/__init__.py": "import numpy\nfrom radixserve import cache, messages",
    "radixserve/api/__init__.py": "import fastapi\nfrom radixserve import tokenizer",
    "radixserve/tokenizer/__init__.py": "import transformers\nfrom radixserve import channel",
    "radixserve/scheduler/__init__.py": "from radixserve import cache, channel, child, messages",
    "radixserve/cache/__init__.py": "import sortedcontainers",
    "radixserve/parsing/__init__.py": "import msgspec",
    "radixserve/worker/__init__.py": "import torch\nfrom radixserve import channel, models",
    "radixserve/worker/attention/__init__.py": "import torch, radixserve_kernels",
    "radixserve/models/__init__.py": "import torch, radixserve_kernels",
    "radixserve/web/__init__.py": "",
    "radixserve_kernels/__init__.py": "import torch, triton",
}
ILLEGAL = [
    ("radixserve/tokenizer/x.py", "import radixserve.scheduler"),
    ("radixserve/scheduler/x.py", "import radixserve.worker"),
    ("radixserve/worker/x.py", "import radixserve.tokenizer"),
    ("radixserve/tokenizer/x.py", "import radixserve.api"),
    ("radixserve/worker/x.py", "import radixserve.cache"),
    ("radixserve/api/x.py", "import radixserve.cache"),
    ("radixserve/api/x.py", "import radixserve.scheduler"),
    ("radixserve/messages.py", "import radixserve.channel"),
    ("radixserve/child.py", "import radixserve.worker"),
    ("radixserve/child.py", "import torch"),
    ("radixserve/scheduler/x.py", "import radixserve.launch"),
    ("radixserve/scheduler/x.py", "import radixserve.models"),
    ("radixserve/cache/x.py", "import radixserve.messages"),
    ("radixserve/cache/x.py", "import msgspec"),
    ("radixserve/parsing/x.py", "import radixserve.tokenizer"),
    ("radixserve/parsing/x.py", "import jinja2"),
    ("radixserve/parsing/x.py", "import torch"),
    ("radixserve/worker/x.py", "import zmq"),
    ("radixserve/launch.py", "import zmq"),
    ("radixserve/scheduler/x.py", "import torch"),
    ("radixserve/tokenizer/x.py", "import torch.nn"),
    ("radixserve/launch.py", "import torch"),
    ("radixserve/launch.py", "import radixserve.doctor"),
    ("radixserve/doctor/x.py", "import torch"),
    ("radixserve/doctor/x.py", "import zmq"),
    ("radixserve/cli/x.py", "import radixserve.messages"),
    ("radixserve/cli/x.py", "import fastapi"),
    ("radixserve/cli/x.py", "import radixserve.doctor"),
    ("radixserve/simulate/x.py", "import torch"),
    ("radixserve/simulate/x.py", "import zmq"),
    ("radixserve/simulate/x.py", "import radixserve.channel"),
    ("radixserve/scheduler/x.py", "import radixserve.simulate"),
    ("radixserve/worker/x.py", "import triton"),
    ("radixserve_kernels/x.py", "import radixserve.config"),
    ("radixserve/extra/__init__.py", ""),  # a room that no contract speaks of
]


def lint(tree: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text + "\n")
    (tree / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    return subprocess.run(
        [*command, "--no-cache"], cwd=tree, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_drawn_imports_are_legal(tmp_path: Path) -> None:
    done = lint(tmp_path, LEGAL)
    assert done.returncode == 0, done.stdout + done.stderr
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert f"Contracts: {len(contracts['contracts'])} kept, 0 broken" in done.stdout


@pytest.mark.parametrize(("file", "statement"), ILLEGAL)
def test_each_illegal_import_breaks_a_contract(tmp_path: Path, file: str, statement: str) -> None:
    text = f"{LEGAL.get(file, '')}\n{statement}"
    done = lint(tmp_path, {**LEGAL, file: text})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN" in done.stdout, done.stdout + done.stderr
