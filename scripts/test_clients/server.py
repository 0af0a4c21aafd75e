"""A server on the embedded model, with room for the prompts of coding agents."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from radixserve.config import cache_home
from radixserve.models.hub import resolve
from test_clients.agents import MODEL

CONTEXT = 65536
TEMPLATE = Path(__file__).parents[2] / "tests" / "clients" / "hermes.jinja"


SMALL = {  # less of it, for weights that are random
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


def stretched(folder: Path, random: bool) -> Path:
    """`folder`, made a copy of the embedded model whose config allows CONTEXT tokens.

    `random`: without its weights, and small.
    """
    source = resolve("", cache_home(), lambda line: print(line, file=sys.stderr))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if not (random and file.suffix == ".safetensors"):
            (folder / file.name).symlink_to(file)
    config = folder / "config.json"
    fields = json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT}
    fields |= SMALL if random else {}
    config.unlink()
    config.write_text(json.dumps(fields))
    return folder


@contextmanager
def serving(model: Path, log: Path) -> Iterator[str]:
    """The URL of a server on the checkpoint in `model`; it says what it has to say into `log`."""
    command = [sys.executable, "-m", "radixserve.launch", "--model-path", str(model)]
    command += ["--served-model-name", MODEL, "--chat-template", str(TEMPLATE), "--port", "0"]
    command += ["--max-total-tokens", str(CONTEXT)]
    command += [] if (model / "model.safetensors").exists() else ["--load-format", "dummy"]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None, "stdout was asked for as a pipe"
        with process.stdout:
            line = process.stdout.readline()
            if not line:
                sys.exit(f"test-clients: the server did not start; {log} says why")
            yield line.split()[-1]
    finally:
        process.terminate()
        process.wait(60)
