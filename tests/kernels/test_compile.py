"""The ahead-of-time gate: the core kernels pass it for sm_90, and it can say no."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from radixserve_kernels import interpret

SCRIPT = Path(__file__).parents[2] / "scripts" / "compile-kernels"


@pytest.fixture(scope="module")
def gate():
    loader = importlib.machinery.SourceFileLoader("compile_kernels", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def test_core_kernels_compile_for_sm_90_within_limits():
    environment = {name: v for name, v in os.environ.items() if name != interpret.SWITCH}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--target", "sm_90"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()[1:]
    assert len(lines) == 11
    assert all("wgmma" in line for line in lines if line.startswith("extend"))
    assert all("mma.sync" in line for line in lines if line.startswith("decode"))


def test_gate_names_each_fault(gate):
    passing = dict(registers=80, spilled=0, shared=232448, wide=4, loads=6, matrix="mma.sync")
    assert gate.faults(gate.Report(**passing), "sm_90") == []
    for fault, change in {
        "spills 8 bytes": dict(spilled=8),
        "more than 232448 bytes of shared memory": dict(shared=232449),
        "no wide load": dict(wide=0),
    }.items():
        assert gate.faults(gate.Report(**passing | change), "sm_90") == [fault]


def test_wrong_use_is_refused(gate, monkeypatch, capsys):
    def refusal(*arguments):
        monkeypatch.setattr(sys, "argv", ["compile-kernels", *arguments])
        with pytest.raises(SystemExit, match="2"):
            gate.main()
        return capsys.readouterr().err

    assert "unknown target: sm_1" in refusal("--target", "sm_90,sm_1")
    monkeypatch.setattr(gate.kv_write, "kv_write_kernel", "an interpreted function")
    assert "unset TRITON_INTERPRET" in refusal()
