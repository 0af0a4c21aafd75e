"""llm: its command line, an answer of a schema and a conversation that goes on."""

import json
import subprocess
import sys
from pathlib import Path

from tests.clients.conftest import MODEL, Turns, package
from tests.process.conftest import Server

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
)


def test_a_conversation(server: Server, turns: Turns, tmp_path: Path) -> None:
    package("llm")
    models = [
        {
            "model_id": MODEL,
            "model_name": MODEL,
            "api_base": f"{server.url}/v1",
            "supports_schema": True,
        }
    ]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))  # YAML holds JSON

    def llm(*words: str) -> str:
        command = [sys.executable, "-m", "llm", *words, "-m", MODEL, "--key", "none"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert json.loads(llm("Where does it rain?", "--schema", SCHEMA))["city"] in ("Paris", "Oslo")
    assert llm("And how cold is it?", "-c", "-o", "max_tokens", "8").strip()
    before, after = turns(2)
    assert after.cached >= before.prompt
