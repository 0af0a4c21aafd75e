"""The table of all sets, on the small ones made here."""

import json
from pathlib import Path

import pytest

from bench.sets import main


def test_every_set_is_a_row_and_every_run_a_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    assert main(["--data", str(data), "--results", str(results), "--users", "1,2"]) == 0
    heading, _, *rows = capsys.readouterr().out.splitlines()
    assert heading.count("|") == rows[0].count("|") == 9
    cells = {row.split(" | ")[0].strip("| "): row.strip("| ").split(" | ") for row in rows}
    assert set(cells) == {"talk", "mooncake_conversation", "agentic_code", "azure_code"}
    # 32 + 17 tokens, of which a block of 16 is shared
    figures = ["2", "49", "32.65", "32.65", "100.00", "32.65", "100.00"]
    assert cells["mooncake_conversation"][1:] == figures
    assert cells["azure_code"][3:] == ["0.00", "0.00", "-", "0.00", "-"]
    lines = [json.loads(line) for line in (results / "sets.jsonl").read_text().splitlines()]
    assert len(lines) == 8 and {line["result"]["users"] for line in lines} == {1, 2}
    assert lines[0]["command"].startswith("python -m bench.sets ")
    assert all(line["result"]["page_size"] == 1 for line in lines)


def test_options_go_to_the_simulator(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["mooncake_conversation", "--data", str(data), "--results", str(tmp_path)]
    assert main([*argv, "--users", "1", "--block", "8", "--page-size", "8"]) == 0
    assert "| mooncake_conversation | 2 | 25 | 32.00 | 32.00 | 100.00 |" in capsys.readouterr().out


def test_an_unknown_set_is_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nowhere", "--data", str(data)])
    assert "no set nowhere" in capsys.readouterr().err
