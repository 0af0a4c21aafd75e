"""A small folder of workloads in the form of the real one."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest


def write(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """One text set, both kinds of block trace, lengths only."""
    write(tmp_path / "talk/segments.jsonl.gz", ["Be good.", "[{}]", "Hello you", "Hi", "more"])
    write(
        tmp_path / "talk/requests.jsonl.gz",
        [
            {
                "id": 0,
                "session": "a",
                "max_out": 9,
                "prompt": [["system", 0], ["tools", 1], ["user", 2]],
            },
            {
                "id": 1,
                "session": "a",
                "max_out": 9,
                "n": 2,
                "after": [0],
                "prompt": [["user", 2], ["assistant", None], ["tool", 4]],
            },
            {"id": 2, "session": "b", "max_out": 4, "prompt": [["", 3], ["", 4]]},
        ],
    )
    write(
        tmp_path / "mooncake/conversation_trace.jsonl.gz",
        [
            {"timestamp": 0, "input_length": 1000, "output_length": 512, "hash_ids": [7, 8]},
            {"timestamp": 1500, "input_length": 513, "output_length": 1, "hash_ids": [7, 9]},
        ],
    )
    call = {"type": "n", "in": 130, "out": 64, "hash_runs": [1, 2]}
    write(
        tmp_path / "agentic_code/sessions.jsonl.gz",
        [
            {
                "id": "s",
                "requests": [
                    {**call, "t": 0.0},
                    {"type": "subagent", "t": 5.0, "requests": [{**call, "t": 1.0}]},
                ],
            },
            {"id": "other", "requests": [{**call, "t": 0.0}]},
        ],
    )
    folder = tmp_path / "azure_llm_2023"
    folder.mkdir()
    with gzip.open(folder / "AzureLLMInferenceTrace_code.csv.gz", "wt") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        file.write("2023-11-16 18:17:03.9799600,48,10\n2023-11-16 18:17:05.9799600,48,1\n")
    return tmp_path
