"""`--record-trace` on a real server: what is in the file at the end, and a path that cannot be."""

import gzip
import json
from pathlib import Path

from tests.process.conftest import start

PROMPT = list(range(3, 53))


def test_a_server_records_its_requests(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    server = start(checkpoint, "--max-total-tokens", "4096", "--record-trace", str(path))
    asked = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    for _ in range(2):
        assert server.post("/v1/completions", asked).status_code == 200
    assert server.stop() == 0
    head, *lines = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
    assert (head["radixserve_trace"], head["page_size"]) == (1, 16) and head["model"]
    steps = [line["step"] for line in lines if "step" in line]
    assert len(steps) == 5, "one of 16, of 80 steps"
    assert all(rows == 1 and seconds > 0 for _, rows, seconds in steps)
    first, second = (line for line in lines if "step" not in line)
    assert [(x["prompt"], x["output"]) for x in (first, second)] == [(50, 40)] * 2
    assert first["cached"] == 0 and second["cached"] >= 48
    assert len(first["blocks"]) == 90 // 16 and first["blocks"] == second["blocks"]
    assert 0 <= first["at"] < second["at"]


def test_a_path_that_cannot_be_is_told_at_the_start(checkpoint: Path, tmp_path: Path) -> None:
    server = start(checkpoint, "--record-trace", str(tmp_path / "no" / "trace"))
    assert server.ended(60) == 1 and not server.url
    wanted = f"the scheduler cannot start: cannot record a trace in {tmp_path / 'no' / 'trace'}"
    assert any(f"{wanted}: No such file or directory" in line for line in server.log)
