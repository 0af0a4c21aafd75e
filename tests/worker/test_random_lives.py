"""Random traffic through scheduler and worker: the bits of each request alone and cold.

The worker is that of --attention-backend triton with its kernels in plain numpy, as the interpreter
takes seconds for a step. Before each step all free pages are poisoned.
"""

import random
from collections import deque

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from radixserve.config import SchedulerConfig, WorkerConfig
from radixserve.messages import (
    Admit,
    Row,
    RunStep,
    Sampling,
    Submit,
    Tokens,
    pack,
    unpack,
)
from radixserve.scheduler.scheduler import Scheduler
from radixserve.worker.batch import bring, gather_rows
from radixserve.worker.runner import Runner
from tests.checkpoints import tiny_checkpoint
from tests.worker import plain_kernels
from tests.worker.requests import Request, free, step

VOCAB = 64
LONGEST = 150
TOP = 8
ROOMS = {"PART_BYTES": (1 << 20, 16000, 4000), "ITEM_BYTES": (64000, 900, 300)}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return tiny_checkpoint(
        tmp_path_factory.mktemp("small"), hidden_size=32, intermediate_size=32, vocab_size=VOCAB
    )


@pytest.fixture
def plain(monkeypatch):
    plain_kernels.install(monkeypatch)


def poison(runner, pages):
    pages = torch.from_numpy(np.array(pages, dtype=np.int64))
    for layer in runner._cache.pages:
        layer[pages] = 0x7F if layer.dtype == torch.uint8 else float("nan")
    for layer in runner._cache.scales:
        layer[pages] = float("nan")


def settings_of(rng):
    """Sizes that make pages scarce, steps small and chunks of prompts many."""
    page_size = rng.choice([1, 4, 8, 32])
    fp8 = rng.random() < 0.4
    return WorkerConfig(
        device="cpu",
        attention_backend="triton",
        enable_deterministic_inference=True,
        page_size=page_size,
        max_total_tokens=rng.choice([160, 192, 320, 640]),
        max_running_requests=rng.choice([2, 4, 7]),
        chunked_prefill_size=rng.choice([1, 9, 24, 64]),
        context_length=LONGEST,
        dtype=rng.choice(["float32", "bfloat16"]),
        kv_cache_dtype="fp8_e4m3" if fp8 else "auto",
        disable_cuda_graph=rng.random() < 0.2,
        cuda_graph_max_bs=rng.choice([1, 2, 3, 5, 8, 40]),
        num_threads=1,
    )


class Life:
    """A scheduler and a runner, with up to two steps whose results it has not seen."""

    def __init__(self, rng, config, folder):
        self.rng = rng
        self.runner = Runner(config, folder)
        policy = rng.choice(["lru", "reuse"])
        self.scheduler = Scheduler(SchedulerConfig(radix_eviction_policy=policy), self.runner.ready)
        self.pending = deque()
        self.prompts, self.answers, self.tops = {}, {}, {}
        self.seen = {"copied": 0, "live": 0, "replayed": 0, "cached": 0, "preempted": 0}
        self.vocab = range(3, 3 + rng.choice([2, 4, 60]))
        self.texts = [rng.choices(self.vocab, k=rng.randint(1, 80)) for _ in "ab"]

    def live(self, requests):
        rng = self.rng
        while len(self.prompts) < requests or self.pending or not self.scheduler.idle:
            while len(self.prompts) < requests and rng.random() < 0.4:
                self.submit()
            if self.prompts and rng.random() < 0.04:
                self.scheduler.abort(rng.choice(list(self.prompts)))
            while len(self.pending) < 2 and rng.random() < 0.9 and self.order():
                pass
            if self.pending and rng.random() < 0.8:
                self.scheduler.done(self.pending.popleft())
            self.collect()
        stats = self.scheduler.stats()
        self.seen["cached"] = stats.cached_tokens
        self.seen["preempted"] = stats.preemptions
        self.seen["replayed"] = self.runner._forward.replayed

    def submit(self):
        rng, name = self.rng, str(len(self.prompts))
        trunk = rng.choice(self.texts)
        trunk = trunk[: rng.randint(0, len(trunk))]
        prompt = (trunk + rng.choices(self.vocab, k=rng.choice([1, 1, 2, 7, 30])))[:100]
        sampling = Sampling(
            seed=rng.randrange(2**63),
            temperature=rng.choice([0.0, 1.0]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
            top_logprobs=TOP,
            stop_ids=(2, 5),
        )
        self.prompts[name], self.answers[name], self.tops[name] = prompt, [], []
        most = rng.choice([1, 2, 12, 50])
        self.scheduler.submit(Submit(name, 0, pack(prompt), sampling, most))
        self.remember(prompt)

    def remember(self, text):
        self.texts = [*self.texts, text][-8:]

    def order(self) -> bool:
        poison(self.runner, self.scheduler.cache.pool.free)
        step = self.scheduler.next_step()
        if step is None:
            return False
        self.seen["copied"] += sum(row.copy_from >= 0 for row in step.rows)
        self.seen["live"] += sum(row.copy_live for row in step.rows)
        self.pending.append(self.runner.submit(step).result())
        return True

    def collect(self):
        for _, message in self.scheduler.outbox:
            assert isinstance(message, Tokens), message
            name = message.request_id
            self.answers[name] += unpack(message.tokens)
            self.tops[name] += [each.top for each in message.logprobs]
            if message.finish:
                self.remember(self.prompts[name] + self.answers[name])
        self.scheduler.outbox.clear()


class Alone:
    """One request on fresh pages, all of it in one row of one launched step."""

    def __init__(self, config, folder):
        self.runner = Runner(
            replace(
                config,
                disable_cuda_graph=True,
                max_running_requests=1,
                max_total_tokens=LONGEST + config.page_size,
            ),
            folder,
        )
        self.pages = list(range(LONGEST // config.page_size + 1))

    @torch.inference_mode()
    def tops(self, prompt, answer):
        """Of each token of the answer the best tokens, and their logprobs."""
        runner, size = self.runner, self.runner._page_size
        poison(runner, self.pages)
        tokens = prompt + answer[:-1]
        row = Row(0, 0, pack(tokens), pack(self.pages[: -(-len(tokens) // size)]))
        runner._change_slots(RunStep(0, (row,), (Admit(0, Sampling(seed=0)),)))
        host = gather_rows([row], runner._slots, page_size=size)
        plan = runner._attention.plan(host)
        batch = bring(host, runner._sampler.last_tokens, runner._slots.device_table)
        wanted = torch.arange(len(prompt) - 1, len(tokens), dtype=torch.int32)
        attend = plan.bind(batch)
        logits = runner._model(batch.tokens, batch.positions, attend, wanted)
        runner._change_slots(RunStep(0, (), frees=(0,)))
        values, ids = logits.log_softmax(-1).topk(TOP)
        return [
            tuple(zip(*pair, strict=True))
            for pair in zip(ids.tolist(), values.tolist(), strict=True)
        ]


def one_life(seed, folder, monkeypatch, requests=14):
    """How often what happened; the number of tokens whose bits were compared."""
    rng = random.Random(seed)
    config = settings_of(rng)
    for room, sizes in ROOMS.items():
        monkeypatch.setattr(
            f"radixserve.worker.attention.triton.{room}", {"cpu": rng.choice(sizes)}
        )
    life = Life(rng, config, folder)
    life.live(requests)
    alone = Alone(config, folder)
    compared = 0
    for name, answer in life.answers.items():
        if answer:
            want = alone.tops(life.prompts[name], answer)
            assert life.tops[name] == want, f"request {name} of seed {seed}, {config}"
            compared += len(answer)
    return life.seen | {"compared": compared}


def test_random_lives(small, plain, monkeypatch):
    seen = [one_life(seed, small, monkeypatch) for seed in range(8)]
    total = {name: sum(each[name] for each in seen) for name in seen[0]}
    assert all(total.values()), total


def test_a_small_step_with_copies_of_what_it_writes(make_runner, plain):
    """It has few enough tokens for a graph, which knows nothing of the second places."""
    runner = make_runner("triton", enable_deterministic_inference=True, cuda_graph_max_bs=40)
    sampling = Sampling(seed=0, temperature=0.0, top_logprobs=TOP)
    first = list(range(3, 10))  # more would be tiles
    second = [*first[:5], 40, 41]
    cold = Request(0, second, [30], sampling=sampling)
    want = step(runner, cold.prefill(), admits=[cold.admit]).logprobs[0]
    free(runner, cold.slot)
    a = Request(1, first, [10], sampling=sampling)
    b = Request(2, second, [20], sampling=sampling, computed=5)
    copying = replace(b.prefill(), copy_from=10, copy_live=True)
    done = step(runner, a.prefill(), copying, admits=[a.admit, b.admit])
    assert done.logprobs[1] == want
