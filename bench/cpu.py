"""What the kernels for CPUs reach of what this machine can do, in one run.

    python -m bench.cpu --threads 2 [--plot sharing.svg]

Ceilings come first: a large float32 matrix product by torch, and a large read. An operator's bound
is the larger of its arithmetic at the one and its bytes at the other; its share is bound / time.
Weights in blocks have to become numbers, whatever the rows: a fused addition each, which counts.
Then whole steps: prefill of 2,048 tokens, decoding at 1,024; their bound is the sum of their
operators', since each waits for the one before ("at once": as if all memory could be read during
all arithmetic). And decoding of B requests of 2,048 tokens with 1,900 of them shared, against the
same without sharing; "limit" is the ratio of their bounds. Medians of interleaved rounds.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.workloads import IDS
from radixserve.config import Config, WorkerConfig
from radixserve.llm import LLM
from radixserve.messages import Sampling
from radixserve.models.decoder import Decoder
from radixserve_kernels.attention_options import Options
from radixserve_kernels.cpu import AttentionPlan, Shape, paged_attention, rms_norm
from radixserve_kernels.cpu.linear import BLOCK_BYTES

GREEDY = Sampling(seed=0, temperature=0.0)
PREFILL, CONTEXT, LONG, SHARED = 2048, 1024, 2048, 1900
STEPS = 16  # of a decoding that is timed
HEIGHTS = (1, 4, 8, 64, 512)  # rows of a product
BATCHES = (1, 2, 4, 8, 16)
PRODUCTS = ("qkv", "output", "gate_up", "down")  # of a layer


class Ceilings(NamedTuple):
    flops: float  # a second, of a product in float32
    read: float  # bytes a second

    def bound(self, flops: float, read: float) -> float:
        """Seconds that the larger of the two takes."""
        return max(flops / self.flops, read / self.read)


class Work(NamedTuple):
    """An operator in all layers of the model, with their own weights or pages."""

    name: str
    run: Callable[[], object]
    flops: float
    read: float


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def ceilings(rounds: int, threads: int) -> Ceilings:
    """The best of some rounds: what the machine can do with so many of torch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    n, big = 1024, torch.ones(1 << 27)  # 512 MiB, in no cache
    a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    products = [seconds(lambda: torch.mm(a, b, out=out)) for _ in range(2 + 3 * rounds)]
    reads = [seconds(big.sum) for _ in range(1 + rounds)]
    torch.set_num_threads(before)
    return Ceilings(2 * n**3 / min(products), big.nbytes / min(reads))


def arithmetic(product: Any, height: int) -> float:
    """Operations of a packed product with rows of that number, unpacking included."""
    unpacking = product.kind in BLOCK_BYTES
    size: int = product.inputs * product.outputs
    return 2.0 * (height + unpacking) * size


def _all(products: Sequence[Any], x: torch.Tensor) -> None:
    for one in products:
        one(x)


def _attend(
    q: torch.Tensor, pages: Sequence[torch.Tensor], plan: AttentionPlan, options: Options
) -> None:
    for one in pages:
        paged_attention(q, one, plan, options)


class Model:
    """The decoder of an engine, its operators one by one."""

    def __init__(self, llm: LLM) -> None:
        runner = llm.runner
        model = runner._model
        assert isinstance(model, Decoder), "the model's code is radixserve's"
        self.decoder = model
        self.layers = list(model._layers())
        self.pages = runner._cache.pages
        self.spec = model.spec

    def works(self) -> Iterator[Work]:
        for height in HEIGHTS:
            yield from self._products(height)
        for height in (1, 512):
            yield self._norms(height)
        for rows, new, length in ((1, 1, CONTEXT), (8, 1, CONTEXT), (1, 512, 512), (1, 50, 2050)):
            yield self._attention(rows, new, length)

    def _products(self, height: int) -> Iterator[Work]:
        for name in PRODUCTS:
            products = [getattr(layer, name) for layer in self.layers]
            packed = [product.packed for product in products]
            x = torch.randn(height, packed[0].inputs)
            yield Work(
                f"{name} x {height}",
                partial(_all, packed, x),
                sum(arithmetic(one, height) for one in packed),
                sum(one.nbytes for one in packed),
            )
        if height <= 8:  # rows that are sampled from
            head: Any = self.decoder.head.packed
            x = torch.randn(height, head.inputs)
            yield Work(f"head x {height}", lambda: head(x), arithmetic(head, height), head.nbytes)

    def _norms(self, height: int) -> Work:
        x, residual = (torch.randn(height, self.spec.hidden_size) for _ in range(2))
        weights = [layer.mlp_norm for layer in self.layers]
        return Work(
            f"norm x {height}",
            lambda: [rms_norm(x, weight, 1e-5, residual) for weight in weights],
            5.0 * x.numel() * len(weights),
            x.nbytes,
        )

    def _attention(self, rows: int, new: int, length: int) -> Work:
        """`rows` rows of `length` tokens, `new` of them new, that share nothing."""
        spec, page = self.spec, self.pages[0].shape[3]
        each = -(-length // page)
        table = np.arange(rows * each, dtype=np.int32).reshape(rows, each)
        plan = AttentionPlan(
            np.arange(rows),
            np.arange(rows + 1) * new,
            np.full(rows, length),
            table,
            Shape.of(self.pages[0], spec.num_heads),
        )
        q = torch.randn(rows * new, spec.num_heads, spec.head_dim)
        for pages in self.pages:
            pages[: rows * each].normal_()
        seen = rows * (new * length - new * (new - 1) / 2)
        options = Options(spec.head_dim**-0.5)
        layers = len(self.pages)
        return Work(
            f"attention {rows} x {new} at {length}",
            partial(_attend, q, self.pages, plan, options),
            4.0 * seen * spec.num_heads * spec.head_dim * layers,
            2.0 * rows * length * spec.num_kv_heads * spec.head_dim * 4 * layers,
        )

    def step(self, rows: int, new: int, length: int) -> list[tuple[float, float]]:
        """Operations and bytes of each operator of a step of such rows; one token each is sampled.

        Norms and rotation, which are small, are not among them.
        """
        products = [getattr(layer, n).packed for layer in self.layers for n in PRODUCTS]
        head: Any = self.decoder.head.packed
        attention = self._attention(rows, new, length)
        each = [(arithmetic(product, rows * new), float(product.nbytes)) for product in products]
        return [*each, (arithmetic(head, rows), head.nbytes), (attention.flops, attention.read)]


def decode_step(llm: LLM, prompts: list[list[int]]) -> float:
    """Seconds of a step in which each of the prompts, cached by now, decodes."""
    once = seconds(lambda: llm.generate(prompts, GREEDY, 1))
    return (seconds(lambda: llm.generate(prompts, GREEDY, 1 + STEPS)) - once) / STEPS


def operators(model: Model, top: Ceilings, rounds: int) -> dict[str, dict[str, float]]:
    works = list(model.works())
    times: dict[str, list[float]] = {work.name: [] for work in works}
    for round_ in range(1 + rounds):
        for work in works:
            took = seconds(work.run)
            if round_:
                times[work.name].append(took)
    found = {}
    for work in works:
        took = median(times[work.name])
        found[work.name] = {"ms": 1e3 * took, "share": top.bound(work.flops, work.read) / took}
    return found


def steps(llm: LLM, model: Model, top: Ceilings, args: argparse.Namespace) -> dict[str, Any]:
    draw = random.Random(args.seed)
    times: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        prompt = draw.choices(IDS, k=PREFILL)
        times.setdefault("prefill", []).append(seconds(partial(llm.generate, [prompt], GREEDY, 1)))
        for rows in (1, 4, 8):
            prompts = [draw.choices(IDS, k=CONTEXT) for _ in range(rows)]
            llm.generate(prompts, GREEDY, 1)
            times.setdefault(f"decode {rows}", []).append(decode_step(llm, prompts))
    parts = {"prefill": model.step(1, PREFILL, PREFILL)}
    parts |= {f"decode {n}": model.step(n, 1, CONTEXT) for n in (1, 4, 8)}
    found = {}
    for name, all_ in times.items():
        took = median(all_)
        one_by_one = sum(top.bound(*part) for part in parts[name])
        at_once = top.bound(*(sum(column) for column in zip(*parts[name], strict=True)))
        found[name] = {"ms": 1e3 * took, "share": one_by_one / took, "at_once": at_once / took}
    return found


def sharing_limit(model: Model, top: Ceilings, rows: int) -> float:
    """How many times as fast sharing makes a step in which every operator takes its bound."""
    *products, (flops, read) = model.step(rows, 1, LONG)
    unique = SHARED + rows * (LONG - SHARED)
    rest = sum(top.bound(*part) for part in products)
    shared = top.bound(flops, read * unique / (rows * LONG))
    return (rest + top.bound(flops, read)) / (rest + shared)


def sharing(
    llm: LLM, model: Model, top: Ceilings, args: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Decoding of B requests with and without a shared prefix, interleaved."""
    draw = random.Random(args.seed + 1)
    root = draw.choices(IDS, k=SHARED)
    most = max(BATCHES)
    shared = [root + draw.choices(IDS, k=LONG - SHARED) for _ in range(most)]
    alone = [draw.choices(IDS, k=LONG) for _ in range(most)]
    for prompts in (shared, alone):
        llm.generate(prompts, GREEDY, 1)
    found = {}
    for rows in BATCHES:
        pairs = [
            (decode_step(llm, shared[:rows]), decode_step(llm, alone[:rows]))
            for _ in range(args.rounds)
        ]
        with_, without = (median(times) for times in zip(*pairs, strict=True))
        found[str(rows)] = {
            "shared_ms": 1e3 * with_,
            "alone_ms": 1e3 * without,
            "speedup": without / with_,
            "limit": sharing_limit(model, top, rows),
        }
    return found


def table(result: dict[str, Any]) -> str:
    ceilings_ = f"{result['gflops']:.0f} GFLOP/s, {result['read_gbs']:.1f} GB/s"
    rows = [f"ceilings with {result['threads']} threads: {ceilings_}"]
    for part in ("operators", "steps"):
        rows += ["", f"{part:28}{'ms':>10}{'share':>8}{'at once' if part == 'steps' else '':>9}"]
        for name, told in result[part].items():
            other = f"{told['at_once']:9.0%}" if "at_once" in told else ""
            rows.append(f"{name:28}{told['ms']:10.3f}{told['share']:8.0%}{other}")
    heads = f"{'alone ms':>10}{'shared':>8}{'times':>8}{'limit':>8}"
    rows += ["", f"{'decoding B x 2,048':28}{heads}"]
    for count, told in result["sharing"].items():
        ratios = f"{told['speedup']:8.2f}{told['limit']:8.2f}"
        rows.append(f"{count:28}{told['alone_ms']:10.2f}{told['shared_ms']:8.2f}{ratios}")
    return "\n".join(rows)


def plot(found: dict[str, dict[str, float]], file: Path) -> None:
    """A step of decoding over the number of requests, with and without sharing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    rows = [int(count) for count in found]
    for name, label in (("alone_ms", "nothing shared"), ("shared_ms", f"{SHARED:,} shared")):
        axes.plot(rows, [told[name] for told in found.values()], marker="o", label=label)
    axes.set(
        title=f"Decoding B requests of {LONG:,} tokens",
        xlabel="B",
        ylabel="a step, ms",
        ylim=(0, None),
    )
    axes.legend()
    figure.savefig(file)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--model-path", default="", help="default: the embedded model")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--rounds", type=int, default=5)
    add("--seed", type=int, default=0)
    add("--plot", type=Path, help="draw decoding over B into this file; needs matplotlib")
    args = parser.parse_args(argv)
    tokens = 2 * max(BATCHES) * (LONG + 2 * STEPS) + 8 * args.rounds * 2 * CONTEXT
    worker = WorkerConfig(
        model_path=args.model_path,
        device="cpu",
        attention_backend="cpu",
        num_threads=args.threads,
        max_total_tokens=tokens,
    )
    try:
        llm = LLM(Config(worker=worker))
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    with torch.inference_mode():
        top = ceilings(args.rounds, args.threads)
        model = Model(llm)
        result: dict[str, Any] = {
            "gflops": top.flops / 1e9,
            "read_gbs": top.read / 1e9,
            "threads": args.threads,
            "rounds": args.rounds,
            "sharing": sharing(llm, model, top, args),
            "steps": steps(llm, model, top, args),
            "operators": operators(model, top, args.rounds),
        }
    if args.plot:
        plot(result["sharing"], args.plot)
    print(table(result))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
