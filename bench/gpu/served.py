"""A runner on weights that nobody trained, fed with steps; with a scheduler where it can be had."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.gpu.check import Absent, Check
from bench.gpu.sizes import Case, Model
from radixserve.config import Config, WorkerConfig
from radixserve.messages import Admit, Row, RunStep, Sampling, pack
from radixserve.worker.pending import Pending
from radixserve.worker.runner import Runner

GREEDY = Sampling(seed=0, temperature=0.0)
WARM_STEPS = 3


def config_json(model: Model) -> str:
    """The config.json of a Llama of these sizes."""
    return json.dumps(
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": model.hidden,
            "num_hidden_layers": model.layers,
            "num_attention_heads": model.heads,
            "num_key_value_heads": model.kv_heads,
            "head_dim": model.head_dim,
            "intermediate_size": model.inner,
            "vocab_size": model.vocab,
            "max_position_embeddings": model.max_position,
            "rope_theta": 500000.0,
            "rms_norm_eps": 1e-5,
            "dtype": "bfloat16",
        }
    )


class Served:
    """The runner, and the slots and pages of what is sent to it."""

    def __init__(self, check: Check, folder: Path, cases: Sequence[Case], **changes: Any) -> None:
        """`cases`: rows, context, shared tokens of decoding that there must be room for."""
        sizes = check.sizes
        self.page_size = sizes.page_sizes[0]
        self._steps = WARM_STEPS + sizes.steps
        self._rounds = sizes.rounds
        tokens = [self.room(*case) * self.page_size for case in cases]
        config = WorkerConfig(
            model_path=str(folder),
            load_format="dummy",
            dtype="bfloat16",
            device=check.device.type,
            attention_backend="triton",
            page_size=self.page_size,
            max_total_tokens=max([*tokens, 4 * (sizes.shared + sizes.own + self.page_size)]),
            max_running_requests=sizes.max_rows,
            cuda_graph_max_bs=sizes.graph_tokens,
            num_threads=1 if check.dry else 0,
            **changes,
        )
        self._llm: Any = None
        self._missing = ""
        try:
            from radixserve.llm import LLM

            self._llm = LLM(Config(worker=config))
            self.runner: Runner = self._llm.runner
        except ImportError as error:
            self._missing = str(error)
            self.runner = Runner(config, folder)
        for pages in self.runner._cache.pages:
            pages.normal_()
        self._random = np.random.default_rng(0)
        self._vocab = sizes.model.vocab
        self._sent = 0

    def room(self, count: int, context: int, shared: int) -> int:
        """Pages of `count` rows that decode from a context, of which so many tokens are shared."""
        own = -(-(context - shared + self._steps) // self.page_size) + 1
        return shared // self.page_size + count * own

    def submit(
        self, rows: Sequence[Row], *, admits: Sequence[int] = (), frees: Sequence[int] = ()
    ) -> Pending:
        self._sent += 1
        admitted = tuple(Admit(slot=slot, sampling=GREEDY) for slot in admits)
        step = RunStep(step=self._sent, rows=tuple(rows), admits=admitted, frees=tuple(frees))
        return self.runner.submit(step)

    def row(self, slot: int, start: int, count: int, pages: Sequence[int]) -> Row:
        """The first row of a request, of which `start` tokens are taken for cached."""
        return Row(slot, start, pack(self.tokens(count)), pack(pages))

    def tokens(self, count: int) -> list[int]:
        """Fresh ones."""
        numbers: list[int] = self._random.integers(0, self._vocab, count).tolist()
        return numbers

    def answer(self, cached: int, total: int) -> float:
        """Median seconds to the first token of a prompt, through the scheduler. Raises `Absent`."""
        if self._llm is None:
            raise Absent(f"radixserve.llm cannot be imported: {self._missing}")
        prefix = self.tokens(cached)
        if cached:
            self._llm.generate([[*prefix, *self.tokens(total - cached)]], GREEDY, 1)
        seconds = []
        for _ in range(self._rounds + 1):
            prompt = [*prefix, *self.tokens(total - cached)]
            begin = time.perf_counter()
            (answer,) = self._llm.generate([prompt], GREEDY, 1)
            seconds.append(time.perf_counter() - begin)
            if not cached <= answer.cached_tokens < cached + self.page_size:
                raise RuntimeError(f"{answer.cached_tokens} tokens cached, not {cached}")
        return median(seconds[1:])
