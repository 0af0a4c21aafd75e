"""One index in a process of its own, asked in lines of JSON.

    python -m bench.indexes.child ours|sglang|sglang-rust|vllm PAGE_SIZE
    python -m bench.indexes.child steps ORDER ROWS

reads `{"do": METHOD, ...arguments}` from stdin and answers each with one line on stdout: what the
method of `Bench` (`build`, `build_chain`, `measure`) or `Steps` (`build`, `measure`) returns. What
an engine prints goes to stderr. Ends with its stdin.
"""

import cProfile
import importlib
import io
import json
import os
import pstats
import sys
from typing import Any

MAKERS = {
    "ours": ("bench.indexes.ours", "make"),
    "sglang": ("bench.indexes.sglang_tree", "make_python"),
    "sglang-rust": ("bench.indexes.sglang_tree", "make_rust"),
    "vllm": ("bench.indexes.vllm_pool", "make"),
}


def subject(name: str, arguments: list[str]) -> Any:
    """What is measured in this process, still empty."""
    if name == "steps":
        from bench.indexes.steps import Steps  # needs radixserve, which rivals' environments lack

        return Steps(arguments[0], int(arguments[1]))
    from bench.indexes.index import Bench

    module, function = MAKERS[name]
    return Bench(getattr(importlib.import_module(module), function), int(arguments[0]))


def profile(bench: Any, arguments: dict[str, Any]) -> dict[str, str]:
    """Where `measure` spends its time: the most expensive functions by their own time."""
    profiler = cProfile.Profile()
    profiler.runcall(bench.measure, **arguments)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(20)
    return {"text": text.getvalue()}


def main(argv: list[str]) -> int:
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    bench = subject(argv[0], argv[1:])
    for line in sys.stdin:
        arguments = json.loads(line)
        do = arguments.pop("do")
        answer = profile(bench, arguments) if do == "profile" else getattr(bench, do)(**arguments)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
