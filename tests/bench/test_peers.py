"""The bench beside other servers: what needs none of them."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from bench import peers
from bench.rivals import report
from bench.rivals.processes import Failed, last_lines, processes, run
from bench.rivals.servers import Server, servers
from bench.rivals.weights import Weights, dense_gguf

WEIGHTS = Weights(Path("folder"), Path("dense.gguf"), Path("blocks.gguf"))

# takes the real stick's options; the server is told by what it leaves or how it dies
STICK = """
import json, shlex, subprocess, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
log = open(options["--server-log"], "wb")
server = subprocess.Popen(
    shlex.split(options["--launch"]), stdout=log, stderr=log, start_new_session=True
)
if server.wait():
    raise SystemExit(f"server exited with {server.returncode} before it answered")
json.dump(json.loads(open(sys.argv[0] + ".json").read()), open(options["--out"], "w"))
"""
DIES = "print('loading'); raise SystemExit('no such device: /opt/some/place/npu0')"
LEAVES = """
import subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
for apart in (False, True):
    print(subprocess.Popen(sleep, start_new_session=apart).pid, flush=True)
import time; time.sleep(0.6)
"""


def part(**changes: Any) -> dict[str, Any]:
    """What the stick says of one workload."""
    usual = {"requests": 2, "errors": 0, "first_error": None, "wall_s": 9.0, "ttft_p50_s": 1.0}
    more = {"ttft_p95_s": 2.0, "out_tokens": 64, "out_tok_s": 7.0, "cached_tokens": 5}
    return usual | more | changes


def stick_result(**changes: Any) -> dict[str, Any]:
    ttft: dict[str, Any] = {
        kind: part(ttft_p50_s=seconds, out_tokens=2)
        for kind, seconds in (("cold", 6.0), ("hot", 0.5), ("back", 0.6))
    }
    return {
        "startup_s": 3.0,
        "pss_end_mib": 2048.0,
        "ttft": ttft | {"wall_s": 20.0, "cold_over_hot": 12.0},
        "branch": part(),
        "agent": part(wall_s=8.0, cached_tokens=None),
        "decode": part(out_tokens=256),
        "single": part(out_tokens=256),
        **changes,
    }


def server(name: str, program: str) -> Server:
    python = Path(sys.executable)
    return Server(name, python, (str(python), "-c", program), "m", (str(python), "-c", "print(7)"))


def lives(pid: int) -> bool:
    return pid in {process.pid for process in processes()}


@pytest.fixture
def stick(tmp_path: Path) -> Path:
    file = tmp_path / "stick.py"
    file.write_text(STICK)
    Path(f"{file}.json").write_text(json.dumps(stick_result()))
    return file


# ---- figures -------------------------------------------------------------------------------------


def test_figures_are_the_columns_of_the_table() -> None:
    found = report.figures(stick_result())
    assert found.keys() == report.COLUMNS.keys() - {"agent_cached"}, "not told is left out"
    assert (found["cold_s"], found["hot_s"], found["back_s"]) == (6.0, 0.5, 0.6)
    assert found["cold_over_hot"] == 12.0 and found["memory_gib"] == 2.0
    assert (found["branch_s"], found["branch_ttft_p95_s"], found["branch_cached"]) == (9.0, 2.0, 5)
    assert found["decode_tok_s"] == 7.0


def test_a_workload_in_which_a_request_failed_has_no_figures_and_a_remark() -> None:
    failed = stick_result(branch=part(errors=1, first_error="500 no"), single=part(out_tokens=200))
    found = report.figures(failed)
    assert not [name for name in found if name.startswith("branch")] and "agent_s" in found
    assert report.remarks(failed, peers.LENGTH) == [
        "branch: 1 requests failed: 500 no",
        "single: 200 tokens came, 256 were asked for",
    ]
    assert not report.remarks(stick_result(), peers.LENGTH)


def test_medians_are_over_the_rounds_that_have_the_figure() -> None:
    rounds = [{"cold_s": 1.0, "hot_s": 4.0}, {"cold_s": 9.0}, {"cold_s": 2.0, "hot_s": 2.0}]
    assert report.medians({"x": rounds}) == {"x": {"cold_s": 2.0, "hot_s": 3.0}}


def test_goals_are_against_the_best_rival_of_each_figure() -> None:
    rows = {
        "radixserve": {"branch_s": 20.0, "decode_tok_s": 90.0, "cold_s": 3.0},
        "a": {"branch_s": 50.0, "decode_tok_s": 60.0},
        "b": {"branch_s": 100.0, "decode_tok_s": 80.0, "cold_s": 6.0},
    }
    found = report.goals(rows)
    assert {name: (goal["whose"], goal["share"]) for name, goal in found.items()} == {
        "branch_s": ("a", 0.4),
        "decode_tok_s": ("b", 1.125),
        "cold_s": ("b", 0.5),
    }
    lines = report.goal_lines(found).splitlines()
    assert lines[0] == "branch s: 20.0, the best rival (a) 50.0, ratio 0.40; goal 0.5: reached"
    assert "goal" not in lines[1]
    assert report.goals({"radixserve": {"cold_s": 1.0}}) == {}


def test_the_table_has_a_dash_where_a_server_has_no_figure() -> None:
    rows = {"radixserve": {"cold_s": 3.0}, "a": {"hot_s": 0.25}}
    lines = report.table(rows, {"radixserve": "0.1.0", "a": ""}).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["cold", "s", "3.00", "-"],
        ["hot", "s", "-", "0.250"],
        ["version", "of", "radixserve:", "0.1.0"],
        ["version", "of", "a:", "not", "told"],
    ]


# ---- servers -------------------------------------------------------------------------------------


def test_rivals_that_are_not_installed_are_named(tmp_path: Path) -> None:
    (tmp_path / "llama.cpp/bin").mkdir(parents=True)
    (tmp_path / "llama.cpp/bin/llama-server").touch()
    run_, missing = peers.chosen(servers(tmp_path, WEIGHTS, 2), "")
    assert [s.name for s in run_] == ["radixserve", "llama.cpp f32", "llama.cpp Q4_1"]
    assert missing == ["vLLM", "transformers", "SGLang"]
    run_, missing = peers.chosen(servers(tmp_path, WEIGHTS, 2), "LLAMA.cpp q4_1,sglang")
    assert ([s.name for s in run_], missing) == (["llama.cpp Q4_1"], ["SGLang"])
    with pytest.raises(ValueError, match="no such server: exllama"):
        peers.chosen(servers(tmp_path, WEIGHTS, 2), "exllama")


def test_a_start_has_its_port_and_its_environment(tmp_path: Path) -> None:
    for one in servers(tmp_path, WEIGHTS, 3):
        words = one.launch(4711).split()
        assert "4711" in words and "OMP_WAIT_POLICY=passive" in words and "PORT" not in words
    assert server("x", "").told_version() == "7"


def test_every_tensor_of_the_dense_file_is_float32(tmp_path: Path) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_block_count(1)
    writer.add_token_list(["a", "b"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    numbers = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    blocks = gguf.quantize(numbers, gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("w.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    made = gguf.GGUFReader(dense_gguf(source, target))
    assert [tensor.tensor_type.name for tensor in made.tensors] == ["F32"]
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q4_1)
    assert np.array_equal(made.tensors[0].data, expected)
    assert made.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert made.fields["general.file_type"].contents() == gguf.LlamaFileType.ALL_F32
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "b.gguf"]


# ---- runs ----------------------------------------------------------------------------------------


def test_a_server_that_dies_is_recorded_and_the_run_goes_on(stick: Path, tmp_path: Path) -> None:
    words = ["--rivals", str(tmp_path), "--rounds", "2", "--stick", str(stick)]
    both = [server("radixserve", "pass"), server("dead", DIES)]
    lines = peers.measure(both, peers.arguments(words), tmp_path)
    assert [(line["round"], line["server"]) for line in lines] == [
        (1, "radixserve"),
        (1, "dead"),
        (2, "radixserve"),
        (2, "dead"),
    ]
    failed = lines[1]["failed"]
    assert "exited with 1" in failed and "loading | no such device: npu0" in failed
    result = peers.result_of(lines, {"radixserve": "1", "dead": "2"}, ["vLLM"])
    assert result["failed"] == ["dead"] and list(result["medians"]) == ["radixserve"]
    assert result["medians"]["radixserve"]["cold_s"] == 6.0


def test_nothing_that_a_server_started_outlives_its_run(
    stick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.rivals.processes.WATCH", 0.05)
    args = peers.arguments(["--rivals", str(tmp_path), "--stick", str(stick)])
    line = peers.once(server("leaver", LEAVES), args, 1, tmp_path)
    assert "figures" in line
    pids = [int(word) for word in (tmp_path / "leaver-1.log").read_text().split()]
    assert len(pids) == 2 and not any(map(lives, pids))


def test_a_run_without_an_end_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    before = time.monotonic()
    with pytest.raises(Failed, match=r"no end after 0\.3 s; no log"):
        run(command, tmp_path / "out.json", tmp_path / "server.log", tmp_path, 0.3)
    assert time.monotonic() - before < 5
    assert lives(os.getpid())


def test_a_log_s_end_has_no_places_of_files(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n" * 20 + 'File "/some/where/x.py"\nGET http://127.0.0.1:1/v1/models\n')
    assert last_lines(log, 2) == 'File "x.py" | GET http://127.0.0.1:1/v1/models'


def test_an_absent_stick_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = str(tmp_path / "bench_peer.py")
    assert peers.main(["--rivals", str(tmp_path), "--stick", absent]) == 1
    assert "bench_peer.py is not there" in capsys.readouterr().err
