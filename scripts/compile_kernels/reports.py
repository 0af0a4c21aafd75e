"""Compiles a launch for a chip that need not be there, reads what came out, and judges it.

Registers, spills and loads are read from the machine code, with the tools of triton's own wheel.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from compile_kernels.forms import Launch

# target -> bytes of shared memory a block may have
SHARED_LIMIT = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448, "gfx942": 65536}
WGMMA, TCGEN05, MMA_SYNC, MFMA = "wgmma", "tcgen05.mma", "mma.sync", "mfma"
NVIDIA_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class Report:
    """What the compiler made of a launch.

    registers: of a lane. spilled: bytes of a lane's memory for what they do not hold.
    shared: bytes of a block. wide: those of the `loads` from global memory that fetch 16 bytes.
    matrix: the kinds of matrix instruction, joined by "+"; "none".
    """

    registers: int
    spilled: int
    shared: int
    wide: int
    loads: int
    matrix: str


def report_of(launch: Launch, target: str) -> Report:
    compiled = compiled_for(launch, target)
    return nvidia_report(compiled) if target.startswith("sm_") else amd_report(compiled)


def compiled_for(launch: Launch, target: str) -> Any:
    """Triton's CompiledKernel, with all pointers aligned to 16 bytes as torch's are."""
    signature = launch.signature()
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, kind in enumerate(signature.values())
        if kind.startswith("*")
    }
    source = ASTSource(
        fn=launch.kernel, signature=signature, constexprs=launch.constants, attrs=aligned
    )
    return triton.compile(source, target=gpu_target(target), options=launch.options)


def gpu_target(target: str) -> Any:
    if target.startswith("sm_"):
        return GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    return GPUTarget("hip", target, 64)


def nvidia_report(compiled: Any) -> Report:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage, sass = (
            subprocess.run(
                [NVIDIA_TOOLS / "cuobjdump", option, file.name],
                capture_output=True, text=True, check=True,
            ).stdout
            for option in ("--dump-resource-usage", "--dump-sass")
        )  # fmt: skip
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    assert found is not None, f"cuobjdump tells no resource usage: {usage}"
    registers, stack, local = map(int, found.groups())
    loads = re.findall(r"\b(?:LDG|LDGSTS|UTMALDG)\b[.\w]*", sass)
    wide = [load for load in loads if ".128" in load or load.startswith("UTMALDG")]
    kinds = [kind for kind in (WGMMA, TCGEN05, MMA_SYNC) if kind in matrix_names(compiled)]
    return Report(
        registers,
        stack + local,
        compiled.metadata.shared,
        len(wide),
        len(loads),
        "+".join(kinds) or "none",
    )


def matrix_names(compiled: Any) -> set[str]:
    found = re.findall(
        r"\b(wgmma)\.mma_async|\b(tcgen05\.mma)\b|\b(mma\.sync)", compiled.asm["ptx"]
    )
    return {name for names in found for name in names if name}


def amd_report(compiled: Any) -> Report:
    """The compiler's own count of spilled VGPRs has those that AGPRs hold, which cost no memory."""
    text = compiled.asm["amdgcn"]

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", text)
        assert found is not None, f"the code has no {name}"
        return int(found[1])

    loads = re.findall(r"\b(?:global|buffer)_load_\w+", text)
    return Report(
        number("vgpr_count"),
        number("private_segment_fixed_size"),
        compiled.metadata.shared,
        len([load for load in loads if "dwordx4" in load]),
        len(loads),
        MFMA if "v_mfma" in text else "none",
    )


def expected_matrix(launch: Launch, target: str) -> str | None:
    """The matrix instruction that the launch must have and alone; None if none is asked for.

    Products of float32 are exact ones (`input_precision="ieee"`), which no chip of NVIDIA has.
    """
    if launch.block_m is None or launch.element == "fp32":
        return None
    if target.startswith("gfx"):
        return MFMA
    large = {"sm_90": WGMMA, "sm_100": TCGEN05}
    return large.get(target, MMA_SYNC) if launch.block_m >= 64 else MMA_SYNC


def faults(report: Report, launch: Launch, target: str) -> list[str]:
    """Why the report does not pass on this target; empty if it does."""
    limit, matrix = SHARED_LIMIT[target], expected_matrix(launch, target)
    wrong = {
        f"spills {report.spilled} bytes": report.spilled > 0,
        f"more than {limit} bytes of shared memory": report.shared > limit,
        "no wide load": launch.wide and report.wide == 0,
        f"not {matrix} alone": matrix not in (None, report.matrix),
    }
    return [fault for fault, is_so in wrong.items() if is_so]
