"""The package's promises: a twin for every op, imports without triton, the interpreter switch."""

import importlib
import inspect
import os
import pkgutil
import subprocess
import sys

import pytest

import radixserve_kernels
from radixserve_kernels import interpret, reference

NOT_OPS = {
    "attention_kernels",
    "attention_options",
    "attention_plan",
    "cpu",  # a library of its own, with tests in tests/kernels/cpu
    "fp8",
    "interpret",
    "reference",
    "reference_sampling",
    "sampling_params",
    "tiles",
}
PLAN, SLOTS = {"work", "tiles"}, {"token_slot"}  # who computes what; the twin asks whose it is
HELPERS = {"quantised", "dequantised"}  # of the reference
OPS = sorted({m.name for m in pkgutil.iter_modules(radixserve_kernels.__path__)} - NOT_OPS)


@pytest.mark.parametrize("name", OPS)
def test_every_op_has_a_twin_with_the_same_arguments(name):
    op = getattr(importlib.import_module(f"radixserve_kernels.{name}"), name)
    own, twins = (inspect.signature(f) for f in (op, getattr(reference, name)))
    assert [p for p in own.parameters.values() if p.name not in PLAN] == [
        p for p in twins.parameters.values() if p.name not in SLOTS
    ]
    assert own.return_annotation == twins.return_annotation
    assert PLAN.isdisjoint(own.parameters) == SLOTS.isdisjoint(twins.parameters)


def test_every_twin_has_an_op():
    twins = {name for name, f in inspect.getmembers(reference, inspect.isfunction)}
    assert twins - HELPERS == set(OPS)


def run(code):
    environment = {k: v for k, v in os.environ.items() if k != interpret.SWITCH}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )


def test_package_and_reference_import_without_triton():
    code = (
        "import sys, radixserve_kernels, radixserve_kernels.reference, radixserve_kernels.tiles\n"
        "from radixserve_kernels import interpret\n"
        "assert 'triton' not in sys.modules and 'radixserve' not in sys.modules\n"
        "interpret.enable(); interpret.enable()\n"
        "import torch\n"
        "from radixserve_kernels.kv_write import kv_write\n"
        "interpret.enable()\n"
        "cache = [torch.zeros(2, 4, 1, 16), torch.zeros(2, 4, 1, 16)]\n"
        "kv_write(torch.ones(1, 1, 16), torch.ones(1, 1, 16), *cache, torch.tensor([5]))\n"
        "assert cache[0].sum() == cache[1][1, 1].sum() == 16\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_the_interpreter_cannot_be_switched_on_too_late():
    done = run("import triton\nfrom radixserve_kernels import interpret\ninterpret.enable()")
    assert done.returncode == 1
    assert "RuntimeError: triton is already imported" in done.stderr
