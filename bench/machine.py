"""What a server does with the machine's cores: idle, decoding, and while prompts arrive.

    python -m bench.machine

Starts radixserve on the embedded model and measures, one after another:

    idle      CPU time of its processes while nothing is asked, in percent of a core
    decode    8 streams of 160 tokens: speed, the share of time in which a step is computed (what is
              missing is added by scheduler and sockets), and the time between a stream's tokens
    arrivals  the same with a fresh prompt of 128 tokens every second: how smooth the streams stay
    threads   how many threads compute where only one core is free: one pinned core, and where the
              system lets us make control groups a quota of one core
    memory    resident memory of all processes once 40,000 cached tokens fill the pool, in multiples
              of the weights and the pool; what processes share counts once

A gap is the time between two events of one stream, at the client.
"""

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx

from bench.client import body_of, connect, first_model, send
from bench.workloads import IDS

STREAMS, TOKENS, PROMPT = 8, 160, 64
ARRIVING, EVERY = 128, 1.0  # tokens of a prompt that arrives, seconds
IDLE_SECONDS = 10.0
POOL, FILLING = 40_000, 1_984  # tokens, of the pool and of a prompt
ADDRESS = re.compile(r"http://\S+")
THREADS = re.compile(r"\((\d+) threads")
POOL_GIB = re.compile(r"pages, ([\d.]+) GiB")
WEIGHTS = re.compile(r"weights are mapped from (\S+)")
CGROUPS = Path("/sys/fs/cgroup")
VERSIONS: dict[
    int, tuple[str, str, dict[str, str]]
] = {  # of control groups: the file that its root has, the group's place, its limits
    2: ("cgroup.controllers", "radixserve-bench", {"cpu.max": "100000 100000"}),
    1: (
        "cpu/cpu.cfs_quota_us",
        "cpu/radixserve-bench",
        {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"},
    ),
}
TICKS = os.sysconf("SC_CLK_TCK")
COMMAND = [sys.executable, "-m", "radixserve.launch", "--port", "0"]


@contextmanager
def server(
    before: Sequence[str] = (), flags: Sequence[str] = ()
) -> Iterator[tuple[str, int, list[str]]]:
    """A server's address, the pid of its launcher and what it said until it was ready."""
    command = [*before, *COMMAND, *flags]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said: list[str] = []
        try:
            for line in process.stdout:
                said.append(line)
                if line.startswith("radixserve ") and (found := ADDRESS.search(line)):
                    yield found.group(), process.pid, said
                    break
            else:
                raise RuntimeError(f"the server did not start: {said[-3:]}")
        finally:
            process.terminate()
            process.stdout.read()


def proc_files(launcher: int, file: str) -> Iterator[tuple[str, str]]:
    """A /proc file of the launcher and of its children, which are named by their module."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if launcher not in (int(entry.name), parent):
                continue
            names = (entry / "cmdline").read_bytes().decode().split("\0")
            text = (entry / file).read_text()
        except OSError:
            continue  # it ended meanwhile
        yield next((n.split(".")[1] for n in names if n.startswith("radixserve.")), "other"), text


def cpu_seconds(launcher: int) -> dict[str, float]:
    """CPU time so far, by process."""
    found = {}
    for name, text in proc_files(launcher, "stat"):
        words = text.rpartition(")")[2].split()
        found[name] = (int(words[11]) + int(words[12])) / TICKS
    return found


def resident(launcher: int) -> float:
    """Bytes of memory that all processes have, each process its part of what is shared."""
    texts = "".join(text for _, text in proc_files(launcher, "smaps_rollup"))
    return 1024.0 * sum(map(int, re.findall(r"^Pss: +(\d+)", texts, re.M)))


def used(before: dict[str, float], after: dict[str, float], seconds: float) -> dict[str, float]:
    """Percent of a core, by process."""
    return {name: 100 * (after[name] - before.get(name, 0.0)) / seconds for name in after}


class Watch:
    """Wall time, CPU time and time in steps between two moments."""

    def __init__(self, client: httpx.AsyncClient, launcher: int) -> None:
        self._client = client
        self._launcher = launcher

    async def _steps(self) -> tuple[float, float]:
        """Sum of the seconds of all steps, and their number."""
        await asyncio.sleep(1.5)  # the scheduler tells of itself once a second
        text = (await self._client.get("../metrics")).text
        return _metric(text, "radixserve_scheduler_step_seconds_total"), _metric(
            text, "radixserve_scheduler_steps_total"
        )

    async def over(self, work: Any) -> tuple[Any, dict[str, Any]]:
        """What awaiting it gives, and what the machine did meanwhile."""
        seconds_before, steps_before = await self._steps()
        cpu, began = cpu_seconds(self._launcher), time.perf_counter()
        result = await work
        seconds = time.perf_counter() - began
        cpu_used = used(cpu, cpu_seconds(self._launcher), seconds)
        seconds_after, steps_after = await self._steps()
        return result, {
            "seconds": seconds,
            "steps": steps_after - steps_before,
            "in_steps": (seconds_after - seconds_before) / seconds,
            "cpu_percent": cpu_used,
        }


def _metric(text: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", text, re.M)
    if found is None:
        raise RuntimeError(f"the server has no metric {name}")
    return float(found.group(1))


async def stream(client: httpx.AsyncClient, model: str, prompt: list[int]) -> list[float]:
    """The moments at which tokens of one answer came."""
    path, body = body_of(model, prompt, TOKENS)
    moments = []
    async with client.stream("POST", path, json=body | {"ignore_eos": True}) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith('data: {"id"') and '"choices":[{' in line:
                moments.append(time.perf_counter())
    return moments


async def streams(
    client: httpx.AsyncClient, model: str, draw: random.Random, *, arrivals: bool
) -> dict[str, Any]:
    """Gaps of the streams in ms; with arrivals, prompts come meanwhile, for one token each."""
    running = [
        asyncio.ensure_future(stream(client, model, draw.choices(IDS, k=PROMPT)))
        for _ in range(STREAMS)
    ]
    sent: list[asyncio.Future[Any]] = []
    while arrivals and not all(task.done() for task in running):
        await asyncio.sleep(EVERY)
        body = body_of(model, draw.choices(IDS, k=ARRIVING), 1)
        sent.append(asyncio.ensure_future(send(client, *body)))
    moments = await asyncio.gather(*running)
    outcomes = await asyncio.gather(*sent)
    gaps = [1e3 * (b - a) for one in moments for a, b in pairwise(one)]
    cuts = quantiles(gaps, n=100)
    found: dict[str, Any] = {
        "tokens": sum(map(len, moments)),
        "gap_ms": {"median": median(gaps), "p99": cuts[98], "longest": max(gaps)},
    }
    if arrivals:
        found["arrived"] = len(outcomes)
        found["ttft_ms"] = 1e3 * median(outcome.ttft for outcome in outcomes)
    return found


async def ask(url: str, launcher: int, seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    async with connect(f"{url}/v1", "", 2 * STREAMS) as client:
        model = await first_model(client)
        await stream(client, model, draw.choices(IDS, k=PROMPT))  # what is made at first use
        watch = Watch(client, launcher)
        _, idle = await watch.over(asyncio.sleep(IDLE_SECONDS))
        found: dict[str, Any] = {"idle": {"cpu_percent": idle["cpu_percent"]}}
        for name in ("decode", "arrivals"):
            work = streams(client, model, draw, arrivals=name == "arrivals")
            told, machine = await watch.over(work)
            speed = told["tokens"] / machine["seconds"]
            found[name] = told | machine | {"tokens_per_second": speed}
        return found


async def fill(url: str, seed: int) -> None:
    """Prompts until more tokens were computed than the pool holds."""
    draw = random.Random(seed)
    async with connect(f"{url}/v1", "", 1) as client:
        model = await first_model(client)
        for _ in range(POOL // FILLING + 1):
            await send(client, *body_of(model, draw.choices(IDS, k=FILLING), 1))


def memory(seed: int) -> dict[str, float]:
    """MiB: the weights, the pool, and all that is resident before and after it is full."""
    with server(flags=["--max-total-tokens", str(POOL)]) as (url, launcher, said):
        text = "".join(said)
        weights, pool = WEIGHTS.search(text), POOL_GIB.search(text)
        if weights is None or pool is None:
            raise RuntimeError("the server does not say what its weights and its pool take")
        found = {
            "weights": Path(weights.group(1)).stat().st_size / 2**20,
            "pool": float(pool.group(1)) * 2**10,
            "idle": resident(launcher) / 2**20,
        }
        asyncio.run(fill(url, seed))
        return found | {"full": resident(launcher) / 2**20}


def threads(before: Sequence[str]) -> int:
    """How many threads a server that is started so computes with."""
    with server(before) as (_, _, said):
        found = THREADS.search("".join(said))
    if found is None:
        raise RuntimeError("the server does not say how many threads it has")
    return int(found.group(1))


def quota() -> int | str:
    """Threads in a control group of one core's time; a sentence where there can be none."""
    found = [version for version in VERSIONS.values() if (CGROUPS / version[0]).exists()]
    if not found:
        return "no control groups here"
    _, place, limits = found[0]
    folder = CGROUPS / place
    try:
        folder.mkdir(exist_ok=True)
        for name, value in limits.items():
            (folder / name).write_text(value)
    except OSError as error:
        return f"no control group of our own: {error.strerror}"
    try:
        return threads(["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"])
    finally:
        folder.rmdir()


def table(result: dict[str, Any]) -> str:
    lines = ["CPU while idle, % of a core: " + _percents(result["idle"]["cpu_percent"])]
    for name in ("decode", "arrivals"):
        told = result[name]
        gaps = ", ".join(f"{key} {value:.1f}" for key, value in told["gap_ms"].items())
        lines.append(
            f"{name}: {told['tokens_per_second']:.0f} tok/s, {told['in_steps']:.1%} of the time in"
            f" steps, gaps of {gaps} ms; CPU {_percents(told['cpu_percent'])}"
        )
    came = result["arrivals"]
    lines.append(f"{came['arrived']} prompts came, first token after {came['ttft_ms']:.0f} ms")
    lines.append(f"threads: {result['threads']}")
    held = result["memory"]
    share = held["full"] / (held["weights"] + held["pool"])
    sizes = ", ".join(f"{name} {mib:.0f}" for name, mib in held.items())
    lines.append(f"memory, MiB: {sizes}: {share:.2f} times the weights and the pool")
    return "\n".join(lines)


def _percents(by_process: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in sorted(by_process.items()))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.machine", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        with server() as (url, launcher, said):
            result = asyncio.run(ask(url, launcher, args.seed))
        all_ = THREADS.search("".join(said))
        result["threads"] = {
            "all cores": int(all_.group(1)) if all_ else None,
            "one pinned core": threads(["taskset", "-c", "0"]),
            "a quota of one core": quota(),
        }
        result["memory"] = memory(args.seed)
    except (RuntimeError, httpx.HTTPError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(table(result))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
