"""The worker without its process: loads the model, owns the K/V cache, runs steps in order.

Called by the worker process and, in one process with the scheduler, by `llm.py`. Not thread-safe.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radixserve.config import WorkerConfig, cache_home
from radixserve.messages import Admit, Row, RunStep, Sampling, Score, StepDone, WorkerReady, pack
from radixserve.models.load import DUMMY, fingerprint, load
from radixserve.models.model import Model
from radixserve.models.operators import OPERATORS
from radixserve.models.spec import TRANSFORMERS, ModelShape, implementation
from radixserve.worker.attention import BACKENDS, Attention, Setting
from radixserve.worker.batch import HostBatch, Repeats, gather_rows, plan_copies
from radixserve.worker.forward import Forward, graph_sizes
from radixserve.worker.kv_cache import DTYPES as KV_DTYPES
from radixserve.worker.kv_cache import KVCache, page_bytes
from radixserve.worker.memory import PoolSize, free_memory, size_pool, working_bytes
from radixserve.worker.pending import Pending
from radixserve.worker.resolve import DTYPES, resolve, step_tokens
from radixserve.worker.sampling import SAMPLERS, Grammars, Sampled, Sampler
from radixserve.worker.scoring import Scored, rows_at_once, score
from radixserve.worker.slots import Slots
from radixserve.worker.upload import upload


class Runner:
    """Runs steps in order; a step's result depends on the steps so far and on nothing else.

    Public: `ready`, what the scheduler has to know; `startup`, seconds per part; `detail`, one
    line on what was chosen. Raises ValueError or OSError with a sentence for the operator if the
    model or the pool cannot be had.
    """

    def __init__(self, config: WorkerConfig, folder: Path) -> None:
        """`folder`: a Hugging Face checkpoint. "auto" values of `config` are chosen here."""
        config = resolve(config)
        self.startup: dict[str, float] = {}
        self._page_size = config.page_size
        self._at_once = rows_at_once(config.max_running_requests)
        self._device = torch.device(config.device)
        backend = backend_of(config)
        backend.use_threads(config.num_threads)
        free_bytes = free_memory(self._device)
        with self._timed("load weights"):
            self._model = model = _model(config, folder, backend)
        spec, context_length = model.spec, model.context_length
        with self._timed("allocate pool"):
            self._cache, pool = make_cache(model, config, free_bytes)
            max_pages = -(-context_length // config.page_size)
            self._slots = Slots(config.max_running_requests, max_pages, self._device)
            setting = Setting(
                self._cache,
                DTYPES[config.dtype],
                self._slots.page_table,
                num_heads=spec.num_heads,
                options=model.options,
                deterministic=config.enable_deterministic_inference,
            )
            self._attention: Attention = backend(setting)
            grammars = Grammars(folder, spec.vocab_size, spec.eos_ids)
            self._sampler: Sampler = SAMPLERS[backend.sampler](
                config.max_running_requests, spec.vocab_size, self._device, grammars
            )
        with self._timed("capture graphs"):
            graphs = model.capturable and not config.disable_cuda_graph
            self._forward = Forward(
                model,
                self._attention,
                self._sampler.last_tokens,
                self._slots.device_table,
                graph_sizes(config.cuda_graph_max_bs if graphs else 0),
            )
        with self._timed("warm-up"):
            # on a GPU as large as a step gets: what is too large for its memory fails here
            most = step_tokens(config) if self._device.type == "cuda" else 2
            self._warm_up(min(most, context_length - 2))
        self.ready = WorkerReady(
            num_pages=pool.num_pages,
            page_size=config.page_size,
            max_rows=config.max_running_requests,
            step_tokens=step_tokens(config),
            context_length=context_length,
            vocab_size=spec.vocab_size,
            fingerprint=fingerprint(folder, config.load_format),
            startup=self.startup,
        )
        self.detail = _detail(model, config, pool)

    @torch.inference_mode()
    def submit(self, step: RunStep) -> Pending:
        """Enqueue one step: free slots first, then admit, copy, and run the rows.

        On a GPU this does not wait for earlier steps. Later steps may be submitted before the
        result is taken, since what a row samples is read on the device.
        """
        pending = Pending(step.step, self._device)
        self._change_slots(step)
        pending.submitted(*(self._compute(step) if step.rows else ()))
        return pending

    def run(self, step: RunStep) -> StepDone:
        """Compute one step and wait for its result."""
        return self.submit(step).result()

    def _change_slots(self, step: RunStep) -> None:
        for freed in step.frees:
            self._slots.free(freed)
            self._attention.forget(freed)
            self._sampler.free(freed)
        for admit in step.admits:
            self._slots.admit(admit.slot)
            self._sampler.admit(admit)
        self._slots.append_pages(step.rows)

    def _compute(self, step: RunStep) -> tuple[Sampled, Scored | None]:
        """The forward pass over the step's rows, and what they sample and score."""
        host = gather_rows(step.rows, self._slots, page_size=self._page_size)
        logits, hidden = self._forward.run(host, self._copy(step, host))
        asked = [row.score for row in step.rows if row.score is not None]
        scored = None
        if asked:
            scored = score(self._model.logits, hidden, asked, at_once=self._at_once)
        slots = [row.slot for row in step.rows if row.sample]
        for slot in slots:
            self._slots[slot].sampled = True
        positions: list[int] = host.kv_len[host.sampled].tolist()
        return self._sampler.sample(logits, slots, positions), scored

    def _copy(self, step: RunStep, host: HostBatch) -> Repeats | None:
        """Make the step's copies from standing pages.

        What is copied from pages that this very step fills is returned, to be written twice, layer
        by layer.
        """
        if all(row.copy_from < 0 for row in step.rows):
            return None
        copies = plan_copies(step.rows, self._slots, self._page_size, host.write_slots.tolist())
        if copies.standing:
            self._cache.copy(copies.standing)
        if not copies.written:
            return None
        written = {"places": list(copies.written.keys()), "tokens": list(copies.written.values())}
        arrays = {name: np.array(numbers) for name, numbers in written.items()}
        return Repeats(**upload(arrays, self._device))

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.startup[part] = time.perf_counter() - begin

    def _warm_up(self, num_tokens: int) -> None:
        """Throw-away steps on page 0, so that the first request does not pay for first uses.

        A long row and short ones, a copy within the step, a draw, penalties and log probabilities,
        the prompt's too.
        """
        whole = pack([0] * -(-(num_tokens + 1) // self._page_size))
        prompt = pack([0] * num_tokens)
        rows = [Row(slot=0, start=0, tokens=prompt, pages=whole, score=Score(0, prompt, 1))]
        admits = [Admit(slot=0, sampling=Sampling(seed=0, top_p=0.5, top_logprobs=1))]
        if len(self._slots.page_table) > 1 < self._page_size:
            history = pack([0, 0])
            rows.append(Row(1, 1, pack([0]), pack([0]), copy_from=0, copy_live=True))
            admits.append(Admit(1, Sampling(seed=0, repetition_penalty=2.0), history, 2))
        self.run(RunStep(step=-2, rows=tuple(rows), admits=tuple(admits)))
        decode = Row(slot=0, start=num_tokens, tokens=b"")
        self.run(RunStep(step=-1, rows=(decode,)))
        self.run(RunStep(step=0, rows=(), frees=tuple(admit.slot for admit in admits)))


def _model(config: WorkerConfig, folder: Path, backend: type[Attention]) -> Model:
    """The model of a resolved `config`; our own with the operators that go with its backend."""
    settings: dict[str, Any] = {
        "device": config.device,
        "dtype": DTYPES[config.dtype],
        "context_length": config.context_length,
        "load_format": config.load_format,
    }
    if implementation(folder, config.model_impl) == TRANSFORMERS:
        if config.enable_deterministic_inference:
            raise ValueError(
                "--enable-deterministic-inference needs the model's code to be radixserve's: what"
                " transformers computes may differ in the last bit from one batch to another"
            )
        from radixserve.models.transformers_model import load_transformers  # seconds to import

        return load_transformers(folder, **settings)
    operators = backend.operators
    if config.enable_deterministic_inference:
        operators = backend.deterministic_operators
    return load(
        folder,
        operators=OPERATORS[operators](torch.device(config.device)),
        kept=None if config.disable_packed_cache else cache_home() / "packed",
        **settings,
    )


def _detail(model: Model, config: WorkerConfig, pool: PoolSize) -> str:
    """One line on what was chosen."""
    return (
        f"{model.spec.architecture}"
        f"{' with dummy weights' if config.load_format == DUMMY else ''},"
        f" {config.dtype} on {config.device} ({config.num_threads} threads,"
        f" {config.attention_backend} attention); {pool}; {config.max_running_requests} slots;"
        f" context of {model.context_length} tokens{f' ({model.detail})' if model.detail else ''}"
    )


def backend_of(config: WorkerConfig) -> type[Attention]:
    """The attention backend of a resolved `config`; ValueError if it cannot do what is asked."""
    asked: dict[str, Callable[[type[Attention]], object]] = {}
    if (dtype := config.kv_cache_dtype) != "auto":
        asked[f"--kv-cache-dtype {dtype}"] = lambda backend: dtype in backend.kv_cache_dtypes
    if config.enable_deterministic_inference:
        asked["--enable-deterministic-inference"] = lambda backend: backend.deterministic_operators
    backend = BACKENDS[config.attention_backend]
    for flag, can in asked.items():
        if not can(backend):
            able = " or ".join(name for name, each in BACKENDS.items() if can(each))
            raise ValueError(
                f"--attention-backend {config.attention_backend} cannot do {flag}"
                f"{f': it needs --attention-backend {able}' if able else ''}"
            )
    return backend


def make_cache(model: Model, config: WorkerConfig, free_bytes: int) -> tuple[KVCache, PoolSize]:
    """The K/V cache for `model`, sized by a resolved `config`.

    `free_bytes`: free memory before the weights were loaded.
    """
    size = pool_size(model.spec, config, free_bytes, model.weight_bytes)
    dtype, device = _kv_dtype(config), torch.device(config.device)
    shape = _page_shape(model.spec, config)
    return KVCache(num_pages=size.num_pages, dtype=dtype, device=device, **shape), size


def pool_size(
    spec: ModelShape, config: WorkerConfig, free_bytes: int, weight_bytes: int
) -> PoolSize:
    """What the K/V pool gets of `free_bytes`, weights included. ValueError if it is nothing."""
    return size_pool(
        page_size=config.page_size,
        page_bytes=page_bytes(**_page_shape(spec, config), dtype=_kv_dtype(config)),
        max_total_tokens=config.max_total_tokens,
        free_bytes=free_bytes,
        weight_bytes=weight_bytes,
        working_bytes=working_bytes(
            spec,
            tokens=step_tokens(config),
            rows=rows_at_once(config.max_running_requests),
            dtype=DTYPES[config.dtype],
            device=torch.device(config.device),
        ),
        fraction=config.mem_fraction_static,
    )


def _page_shape(spec: ModelShape, config: WorkerConfig) -> dict[str, int]:
    return {
        "num_layers": spec.num_layers,
        "page_size": config.page_size,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
    }


def _kv_dtype(config: WorkerConfig) -> torch.dtype:
    return KV_DTYPES.get(config.kv_cache_dtype, DTYPES[config.dtype])
