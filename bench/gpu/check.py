"""What all sections work with: the device, sizes, clocks, the report, the guard of each case."""

import gc
import json
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from bench.gpu.report import Report, Row
from bench.gpu.sizes import Sizes
from bench.gpu.timing import Call, Timer

T = TypeVar("T")
STATE = "state.json"
FACTS = "facts.json"
ERRORS = "errors.txt"  # where each failed case has its traceback
HANG_SECONDS = 60.0  # beyond a section's time, after which it is taken for hanging
FAR = 1e12  # a time that does not come
COMPILERS = 16  # threads; a compilation is mostly ptxas


class Absent(Exception):
    """Something that a case needs is not on this machine; the message says what."""


class DeviceLost(Exception):
    """The device answers no more: only a new process can go on."""


@dataclass
class Check:
    """One run. `facts` are measured numbers that later sections read, by name."""

    device: torch.device
    sizes: Sizes
    timer: Timer
    report: Report
    folder: Path
    facts: dict[str, float] = field(default_factory=dict)
    section: str = ""
    deadline: float = float("inf")  # of the section, by time.time()
    compiled: bool = False  # whether this process has run a kernel

    @property
    def dry(self) -> bool:
        return self.device.type == "cpu"

    @property
    def left(self) -> float:
        """Seconds of the section."""
        return self.deadline - time.time()

    def begin(self, section: str, deadline: float) -> None:
        """Tells the process that waits for this one, too."""
        self.section, self.deadline = section, deadline
        kill_at = min(deadline, FAR) + HANG_SECONDS
        _write(self.folder / STATE, {"section": section, "kill_at": kill_at})

    def fact(self, name: str, value: float) -> None:
        """Kept for a process that goes on behind this one."""
        self.facts[name] = value
        _write(self.folder / FACTS, self.facts)

    def row(self, name: str, case: str = "", **values: Any) -> None:
        self.report.add(Row(section=self.section, name=name, case=case, **values))

    def timed(
        self,
        name: str,
        case: str,
        us: float,
        *,
        nbytes: float = 0,
        flops: float = 0,
        note: str = "",
    ) -> None:
        """A row of a time, with the rates and the share of the floor that follow."""
        floor = self.floor_us(nbytes, flops)
        self.row(
            name,
            case,
            us=us,
            gbs=nbytes / us / 1e3 if nbytes else None,
            tflops=flops / us / 1e6 if flops else None,
            share=floor / us if floor else None,
            note=note,
        )

    def floor_us(self, nbytes: float = 0, flops: float = 0) -> float:
        """The least time that the measured ceilings allow; 0 if they were not measured."""
        if "copy_gbs" not in self.facts or "peak_tflops" not in self.facts:
            return 0.0
        by_bytes = nbytes / self.facts["copy_gbs"] / 1e3
        return max(by_bytes, flops / self.facts["peak_tflops"] / 1e6)

    def case(
        self,
        name: str,
        case: str,
        call: Callable[[], T],
        *,
        seconds: float = 3.0,
    ) -> T | None:
        """What `call` gives; None, and a row that says why, if it fails or there is no time.

        `seconds`: what it may need, compiling included. Raises DeviceLost if the device is.
        """
        if self.left < seconds:
            self.row(name, case, verdict="cut", note=f"needs about {seconds:.0f} s")
            return None
        try:
            return call()
        except DeviceLost:
            raise
        except Absent as error:
            self.row(name, case, verdict="skipped", note=str(error))
        except Exception as error:
            with (self.folder / ERRORS).open("a", encoding="utf-8") as out:
                out.write(f"{self.section}, {name}, {case}: {traceback.format_exc()}\n")
            note = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
            self.row(name, case, verdict="failed", note=note)
        self.free()
        return None

    def free(self) -> None:
        """Give unused memory back. Raises DeviceLost if the device answers no more."""
        gc.collect()
        if self.dry:
            return
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except Exception as error:
            raise DeviceLost(str(error)) from None

    def warm(self, calls: Sequence[Call]) -> None:
        """Run each once, side by side, so that kernels are compiled. Failures are the cases'.

        The first of all alone, as triton then makes what all share. In a dry run no others: the
        interpreter has nothing to compile, and no threads.
        """
        first = int(not self.compiled)
        for call in calls[:first]:
            _quietly(call)
        self.compiled = True
        if not self.dry:
            with ThreadPoolExecutor(min(COMPILERS, os.cpu_count() or 1)) as pool:
                list(pool.map(_quietly, calls[first:]))
        self.free()


def known_facts(folder: Path) -> dict[str, float]:
    """What an earlier process of this run has measured."""
    file = folder / FACTS
    facts: dict[str, float] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return facts


def _write(file: Path, content: Mapping[str, Any]) -> None:
    """In one piece, whenever it is read."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(content), encoding="utf-8")
    new.replace(file)


def _quietly(call: Call) -> None:
    try:
        with torch.inference_mode():
            call()
    except Exception:
        return
