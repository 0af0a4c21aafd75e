"""What the doctor says of good and bad machines, models and flags."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from radixserve.config import WorkerConfig, parse
from radixserve.doctor import checks, packages
from radixserve.doctor.checks import Examination, judged
from radixserve.doctor.command import main
from radixserve.doctor.finding import Finding
from radixserve.worker.hardware import Hardware, measure
from tests.checkpoints import tiny_checkpoint

GOOD = Hardware(
    torch="2.13.0",
    gpus=[],
    vectors="AVX2",
    cores=2,
    triton="",
    kernels="avx2",
    chosen="float32 on cpu",
    free="8",
)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("doctor"))


def found(*flags: str) -> dict[str, list[Finding]]:
    """Check -> its findings, without the slow last one about the hardware."""
    examination = Examination(parse(["--port", "0", *flags], {}))
    examination._hardware = lambda: iter(())  # type: ignore[method-assign]
    examination._hardware.__name__ = "_hardware"  # type: ignore[attr-defined]
    out: dict[str, list[Finding]] = {}
    for finding in examination.findings():
        out.setdefault(finding.check, []).append(finding)
    return out


def test_a_good_machine_from_the_command_line(checkpoint: Path) -> None:
    flags = ["--model-path", str(checkpoint), "--port", "0", "--max-total-tokens", "512"]
    done = subprocess.run(
        [sys.executable, "-m", "radixserve", "doctor", "--json", *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    report = json.loads(done.stdout)
    states = {finding["check"]: finding["state"] for finding in report["findings"]}
    assert (done.returncode, report["ok"]) == (0, True), report
    wanted = ["python", "packages", "port", "sockets", "/dev/shm", "model", "tokenizer", "chat"]
    assert [*states][:-4] == [*wanted, "answers", "torch", "gpu", "cpu"], states
    assert [*states][-4:] == ["kernels", "triton", "worker", "memory"]
    memory = report["findings"][-1]["text"]
    assert "512 tokens" in memory and "as asked for" in memory


def test_without_a_model_the_rest_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "judged", lambda hardware, gpu: judged(GOOD, gpu=False))
    assert main(["--model-path", str(tmp_path), "--port", "0"]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = [line for line in lines if line.startswith("fail")]
    assert len(failed) == 1 and "has no config.json" in failed[0]
    assert lines[0].startswith("ok    python") and "float32 on cpu" in lines[-1]


def test_a_taken_port(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        (finding,) = found("--model-path", str(checkpoint), "--port", port)["port"]
    assert finding.state == "fail" and "--port" in finding.advice


def test_an_open_door(checkpoint: Path) -> None:
    open_to_all = ("--model-path", str(checkpoint), "--host", "0.0.0.0")
    assert [finding.state for finding in found(*open_to_all)["port"]] == ["ok", "warn"]
    assert len(found(*open_to_all, "--api-key", "k")["port"]) == 1


def test_a_path_too_long_for_sockets(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    (finding,) = found("--model-path", str(checkpoint))["sockets"]
    assert finding.state == "fail" and "107 are allowed" in finding.text
    assert not [*deep.iterdir()]
    monkeypatch.setattr("tempfile.tempdir", str(deep / "absent"))
    (finding,) = found("--model-path", str(checkpoint))["sockets"]
    assert finding.state == "fail" and "TMPDIR" in finding.advice


def test_no_shared_memory(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "SHARED_MEMORY", tmp_path / "absent")
    (finding,) = found("--model-path", str(checkpoint))[str(tmp_path / "absent")]
    assert finding.state == "warn"


def change(name: str, **fields: object) -> Callable[[Path], None]:
    """Sets fields of a JSON file of a checkpoint."""

    def edit(folder: Path) -> None:
        content = json.loads((folder / name).read_text()) | fields
        (folder / name).write_text(json.dumps(content))

    return edit


def template(source: str | None) -> Callable[[Path], None]:
    return change("tokenizer_config.json", chat_template=source)


PREFIXED = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
COUNTED = "{{ messages | length }}" + PREFIXED
REFUSING = "{{ raise_exception('no users here') }}"
DATED = "{{ strftime_now('%Y') }}" + PREFIXED
THINKING = "{% set marks = '<think></think>' %}" + PREFIXED
TOOLS = PREFIXED + "{{ tools }}"


@pytest.mark.parametrize(
    ("edit", "check", "state", "says"),
    [
        (change("config.json", architectures=["GPT2LMHeadModel"]), "model", "ok", "transformers"),
        (change("config.json", hidden_act="gelu"), "model", "fail", "gelu"),
        (lambda f: (f / "tokenizer.json").unlink(), "model", "fail", "no tokenizer.json"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer", "fail", "Tokenizer"),
        (template(None), "chat", "warn", "no chat template"),
        (template("{% for"), "chat", "fail", "TemplateSyntaxError"),
        (template(REFUSING), "chat", "fail", "no users here"),
        (template(COUNTED), "chat", "warn", "in another way once the next one comes"),
        (template(DATED), "chat", "warn", "prints the date"),
        (template(TOOLS), "answers", "warn", "in no format that is known"),
        (template(PREFIXED), "answers", "ok", "told in words"),
        (template(PREFIXED), "answers", "ok", "is not looked for"),
        (template(PREFIXED), "chat", "ok", "renders"),
        (template(THINKING), "chat", "warn", "leaves out the reasoning"),
        (template(THINKING), "answers", "ok", "reasoning is looked for"),
    ],
)
def test_models(
    checkpoint: Path,
    tmp_path: Path,
    edit: Callable[[Path], None],
    check: str,
    state: str,
    says: str,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    edit(folder)
    finding = found("--model-path", str(folder))[check][0]
    assert (finding.state, says in finding.text) == (state, True), finding


def test_a_model_that_pages_cannot_serve(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"architectures": ["MambaForCausalLM"], "model_type": "mamba"}'
    )
    found = measure(WorkerConfig(model_path=str(tmp_path)))
    assert "MambaForCausalLM keeps a state" in found.model_fault and not found.pool
    assert [f.state for f in judged(found, gpu=False) if f.check == "model"] == ["fail"]


def test_a_context_beyond_the_model(checkpoint: Path) -> None:
    (finding,) = found("--model-path", str(checkpoint), "--context-length", "99999")["model"]
    assert finding.state == "fail" and "--context-length 99999" in finding.text


@pytest.mark.parametrize(
    ("fields", "gpu", "check", "state"),
    [
        ({}, False, "gpu", "ok"),
        ({}, True, "gpu", "warn"),
        ({"gpus": ["H200"]}, True, "triton", "fail"),
        ({"gpus": ["H200"], "triton": "3.9.0"}, True, "triton", "ok"),
        ({"vectors": "DEFAULT"}, False, "cpu", "warn"),
        ({}, False, "kernels", "ok"),
        ({"kernels_fault": "no C compiler"}, False, "kernels", "warn"),
        ({"kernels_fault": "no C compiler", "gpus": ["H200"]}, True, "kernels", "ok"),
        ({"chosen_fault": "--device cuda: no GPU"}, False, "worker", "fail"),
        ({"pool_fault": "no memory"}, False, "memory", "fail"),
        ({"pool": "K/V pool of 512 tokens"}, False, "memory", "ok"),
    ],
)
def test_hardware(fields: dict[str, object], gpu: bool, check: str, state: str) -> None:
    told = {name: getattr(GOOD, name) for name in Hardware.__struct_fields__} | fields
    states = {finding.check: finding.state for finding in judged(Hardware(**told), gpu=gpu)}
    assert states[check] == state


@pytest.mark.parametrize(
    ("flags", "check", "says"),
    [
        (["--device", "cuda"], "worker", "--device cuda"),
        (["--kv-cache-dtype", "fp8_e4m3"], "worker", "--attention-backend cpu cannot do"),
        (["--max-total-tokens", "3"], "memory", "less than one page"),
    ],
)
def test_flags_that_this_machine_cannot_do(
    checkpoint: Path, flags: list[str], check: str, says: str
) -> None:
    if "cuda" in flags and Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    config = parse(["--port", "0", "--model-path", str(checkpoint), "--device", "cpu", *flags], {})
    told = [*Examination(config).findings()]
    (finding,) = [finding for finding in told if finding.state == "fail"]
    assert finding.check == check and says in finding.text


def test_packages_that_are_absent_or_old(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["msgspec>=0.19", "msgspec>=99", "no-such-package-here>=1"]
    monkeypatch.setattr(packages, "declared", lambda: (">=3.11", wanted))
    old, absent = packages.packages()
    assert old.state == absent.state == "fail"
    assert old.text.startswith("msgspec 0.") and "is not installed" in absent.text
    assert absent.advice == "pip install 'no-such-package-here>=1'"
    monkeypatch.setattr(packages, "declared", lambda: (">=99.1", []))
    (python,) = packages.python()
    assert python.state == "fail" and ">=99.1" in python.advice


def test_what_is_declared_is_found_with_and_without_a_checkout(tmp_path: Path) -> None:
    bound, lines = packages.declared()
    assert bound.startswith(">=3.") and "torch" in {Requirement(line).name for line in lines}
    made = tmp_path / "radixserve-9.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: radixserve\nVersion: 9\nRequires-Python: >=3.11\n"
        'Requires-Dist: torch>=2\nRequires-Dist: triton>=3; extra == "gpu"\n'
    )
    program = (
        "from pathlib import Path; from radixserve.doctor.packages import declared;"
        "print(*declared(Path('absent')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ
        | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '.')}"},
    )
    assert done.stdout.strip() == ">=3.11 ['torch>=2']"


def test_a_machine_without_the_packages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "radixserve.launch", None)  # cannot be imported
    assert main([]) == 1
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("fail  packages") and "all other checks wait for it" in last
