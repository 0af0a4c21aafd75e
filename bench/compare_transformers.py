"""The engine against transformers on one checkpoint, in one process and one run, interleaved.

    python -m bench.compare_transformers --model FOLDER --threads 2

Both compute in float32 with the same number of threads. `prefill`: one prompt of 2,048 fresh tokens
to its next token (transformers: one forward, `logits_to_keep=1`). `decode`: 8 prompts of 128 fresh
tokens and 64 greedy tokens each. Medians over the rounds; also whether the tokens agree.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from bench.workloads import IDS
from radixserve.config import Config, WorkerConfig
from radixserve.llm import LLM
from radixserve.messages import Sampling
from radixserve.models.spec import read_config

GREEDY = Sampling(seed=0, temperature=0.0)
Batch = list[list[int]]
Generate = Callable[[Batch, int], Batch]  # prompts of one length, tokens wanted -> tokens


def by_engine(args: argparse.Namespace) -> Generate:
    worker = WorkerConfig(model_path=args.model, dtype="float32", num_threads=args.threads)
    llm = LLM(Config(worker=worker))

    def generate(prompts: Batch, count: int) -> Batch:
        answers = llm.generate(prompts, GREEDY, count)
        assert not any(a.cached_tokens for a in answers), "the prompts were to be new ones"
        return [list(answer.tokens) for answer in answers]

    return generate


def by_transformers(args: argparse.Namespace) -> Generate:
    model: Any = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(prompts: Batch, count: int) -> Batch:
        ids = torch.tensor(prompts)
        if count == 1:
            logits = model(ids, logits_to_keep=1, use_cache=True).logits
            first: Batch = logits[:, -1].argmax(-1, keepdim=True).tolist()
            return first
        answer = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=count,
            max_new_tokens=count,
            pad_token_id=0,
        )
        new: Batch = answer[:, ids.shape[1] :].tolist()
        return new

    return generate


def timed(generate: Generate, prompts: Batch, count: int) -> tuple[float, Batch]:
    started = time.perf_counter()
    tokens = generate(prompts, count)
    seconds = time.perf_counter() - started
    lengths = {len(row) for row in tokens}
    assert lengths == {count}, f"{count} tokens each were asked for, there are {lengths}"
    return seconds, tokens


def measure(engines: dict[str, Generate], args: argparse.Namespace) -> dict[str, Any]:
    """Interleaved rounds after one uncounted; seconds by (workload, engine), and agreement."""
    shapes = {
        "prefill": (1, args.prefill, 1),
        "decode": (args.batch, args.prompt, args.new),
        "decode_first": (args.batch, args.prompt, 1),
    }
    rng = random.Random(args.seed)
    seconds: dict[tuple[str, str], list[float]] = {}
    same = total = 0
    for round_ in range(args.rounds + 1):
        for name, (rows, length, count) in shapes.items():
            prompts = [rng.choices(IDS, k=length) for _ in range(rows)]
            answers = []
            for engine, generate in engines.items():
                torch.set_num_threads(args.threads)
                took, tokens = timed(generate, prompts, count)
                answers.append(tokens)
                if round_:
                    seconds.setdefault((name, engine), []).append(took)
            total += rows
            same += sum(a == b for a, b in zip(*answers, strict=True))
    medians = {key: median(values) for key, values in seconds.items()}
    return report(medians, args) | {"same_answers": same, "answers": total}


def report(medians: dict[tuple[str, str], float], args: argparse.Namespace) -> dict[str, Any]:
    """Rates by engine and the ratios. Decoding is what is left without the first token."""
    result: dict[str, Any] = {}
    for engine in ("engine", "transformers"):
        steps = medians["decode", engine] - medians["decode_first", engine]
        result[f"prefill_s_{engine}"] = medians["prefill", engine]
        result[f"generate_s_{engine}"] = medians["decode", engine]
        result[f"decode_tokens_per_s_{engine}"] = args.batch * (args.new - 1) / steps
    result["prefill_speedup"] = result["prefill_s_transformers"] / result["prefill_s_engine"]
    result["decode_speedup"] = (
        result["decode_tokens_per_s_engine"] / result["decode_tokens_per_s_transformers"]
    )
    shape = {name: getattr(args, name) for name in ("prefill", "batch", "prompt", "new", "rounds")}
    return result | shape | {"threads": args.threads}


def table(result: dict[str, Any]) -> str:
    names = {
        "prefill_s": f"prefill {result['prefill']} tokens, s",
        "generate_s": f"{result['batch']} x ({result['prompt']} + {result['new']}) tokens, s",
        "decode_tokens_per_s": "of that decoding, tokens/s",
    }
    rows = [f"{'':32}{'engine':>14}{'transformers':>14}"]
    for key, title in names.items():
        ours, theirs = result[f"{key}_engine"], result[f"{key}_transformers"]
        rows.append(f"{title:32}{ours:14.3f}{theirs:14.3f}")
    rows.append(f"speed-up: prefill {result['prefill_speedup']:.2f}, ")
    rows[-1] += f"decode {result['decode_speedup']:.2f}; "
    rows[-1] += f"{result['same_answers']} of {result['answers']} answers the same"
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compare_transformers")
    parser.description, parser.formatter_class = __doc__, argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--model", required=True, help="Hugging Face checkpoint folder")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--rounds", type=int, default=3)
    add("--prefill", type=int, default=2048, help="tokens")
    add("--batch", type=int, default=8)
    add("--prompt", type=int, default=128, help="tokens of each prompt that is decoded from")
    add("--new", type=int, default=64, help="tokens decoded for each, 2 at least")
    add("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if read_config(Path(args.model)).get("quantization_config"):
        print(f"{args.model}: weights that transformers cannot read", file=sys.stderr)
        return 1
    engines = {"engine": by_engine(args), "transformers": by_transformers(args)}
    result = measure(engines, args)
    print(table(result))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
