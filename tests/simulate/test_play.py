"""Whole runs: the bound is met, published LRU figures too, and time is what the cost model says."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from radixserve.config import SchedulerConfig
from radixserve.messages import WorkerReady
from radixserve.simulate.bound import bound
from radixserve.simulate.clients import Load, in_turn
from radixserve.simulate.optimum import lru, optimum
from radixserve.simulate.play import Simulation
from radixserve.simulate.tokens import Encoder
from radixserve.simulate.worker import Cost
from radixserve.simulate.workloads import Recorded, read
from tests.simulate.sets import DATA, blocks, needs_data, table

COST = Cost(step=1.0, prefill=0.1, decode=0.01)
QUEUE = 10**6


def play(
    requests: Sequence[Recorded],
    encoder: Encoder | None = None,
    load: Load | None = None,
    config: SchedulerConfig | None = None,
    **worker: Any,
) -> Simulation:
    load = load or Load(users=1)
    given = {"num_pages": 400_000, "page_size": 1, "max_rows": load.users or 8}
    given |= {"step_tokens": 4096, "context_length": QUEUE, "vocab_size": QUEUE} | worker
    ready = WorkerReady(**given, fingerprint="simulated")
    config = config or SchedulerConfig(max_queued_requests=QUEUE)
    simulation = Simulation(requests, encoder or Encoder(), load, config, ready, COST)
    simulation.run()
    return simulation


def facts(simulation: Simulation) -> dict[str, Any]:
    """All that is not measured by a real clock."""
    facts = dataclasses.asdict(simulation.outcome)
    del facts["scheduler_seconds"]
    return facts | {"evicted": simulation.scheduler.stats().evicted_pages}


# ---- the bound -----------------------------------------------------------------------------------


@needs_data
@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize("name", ["llm_judge", "oasst_trees", "tot_text", "mt_bench"])
def test_one_user_hits_the_bound_exactly(name: str, samples: bool) -> None:
    requests = list(read(DATA / name))[:250]
    encoder = Encoder(samples=samples)
    most = bound(encoder.stream(in_turn(requests)))
    config = SchedulerConfig(max_queued_requests=QUEUE, schedule_policy="fcfs")
    outcome = play(requests, encoder, config=config).outcome
    assert (outcome.cached_tokens, outcome.prompt_tokens) == (
        most.cached_tokens,
        most.prompt_tokens,
    )
    assert outcome.finished == most.requests and not outcome.rejected


@needs_data
@pytest.mark.parametrize("name", ["mmlu_val", "react_hotpotqa", "oasst_val", "generative_agents"])
def test_thirty_two_users_hit_nearly_as_much(name: str) -> None:
    requests = list(read(DATA / name))[:400]
    most = bound(Encoder().stream(in_turn(requests)))
    outcome = play(requests, load=Load(users=32)).outcome
    assert outcome.prompt_tokens == most.prompt_tokens
    assert 0.99 * most.cached_tokens <= outcome.cached_tokens <= most.cached_tokens


@needs_data
@pytest.mark.parametrize(
    ("name", "kilo"), [("mmlu_val", 4), ("llm_judge", 4), ("bfcl_multi_turn", 8), ("tot_text", 16)]
)
def test_lru_with_a_cap_hits_what_was_published(name: str, kilo: int) -> None:
    """One page more than the cache of the table: the one that a running request fills."""
    requests = list(read(DATA / name))
    encoder, pages = Encoder(outputs=False), kilo * 64
    policies = {"radix_eviction_policy": "lru", "schedule_policy": "fcfs"}
    config = SchedulerConfig(
        max_queued_requests=QUEUE,
        disable_page_copy=True,
        **policies,  # type: ignore[arg-type]
    )
    outcome = play(requests, encoder, config=config, page_size=16, num_pages=pages + 1).outcome
    row = table("Text sets, LRU, 16-token blocks, hit % by capacity in tokens")[f"{name}/file"]
    published = float(row[{4: 2, 8: 3, 16: 4}[kilo]])
    hit = 100 * outcome.cached_tokens / outcome.prompt_tokens
    assert hit == pytest.approx(published, abs=0.1)
    calls = list(encoder.stream(in_turn(requests)))
    assert hit == pytest.approx(100 * lru(calls, 16, pages).rate, abs=0.1)
    assert outcome.cached_tokens <= optimum(calls, 16, pages + 1).cached_tokens


# ---- time ----------------------------------------------------------------------------------------


def test_times_are_those_of_the_cost_model() -> None:
    """6 tokens of prompt: 1 + 6 / 10 s to the first token; one decode: 1.01 s to the second."""
    outcome = play([blocks(0)]).outcome
    assert outcome.ttft == pytest.approx([1.6]) and outcome.waiting == [0.0]
    assert outcome.seconds == pytest.approx(2.61)
    assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.output_tokens) == (6, 0, 2)


def test_a_second_request_pays_for_what_is_its_own() -> None:
    """One user: it comes at 2.61 s, hits the block of four, computes two tokens."""
    outcome = play([blocks(0), blocks(1)]).outcome
    assert outcome.ttft == pytest.approx([1.6, 1.2]) and outcome.cached_tokens == 4
    assert outcome.seconds == pytest.approx(2.61 + 1.2 + 1.01)
    assert outcome.admitted == ["0.0", "1.0"]


def test_two_at_once_share_a_step() -> None:
    outcome = play([blocks(0), blocks(1)], load=Load(users=2)).outcome
    assert outcome.ttft == pytest.approx([1.8, 1.8]) and outcome.cached_tokens == 4
    assert outcome.seconds == pytest.approx(1.8 + 1.02)


def test_who_comes_later_in_an_open_loop_waits_for_the_steps_ahead() -> None:
    """At 0.5 s two steps are ordered, which end at 1.6 and 2.61 s: it is in the third."""
    requests = [blocks(0), blocks(1, at=0.5)]
    outcome = play(requests, load=Load(recorded_times=True)).outcome
    assert outcome.waiting == pytest.approx([0.0, 1.6 - 0.5])
    assert outcome.ttft == pytest.approx([1.6, 2.61 + 1.2 - 0.5])


def test_an_idle_server_does_nothing_until_somebody_comes() -> None:
    requests = [blocks(0), blocks(1, at=100.0)]
    simulation = play(requests, load=Load(recorded_times=True))
    assert simulation.outcome.seconds == pytest.approx(100 + 1.2 + 1.01)
    assert simulation.scheduler.counters.steps == 4


def test_a_preempted_request_is_told_its_answer_to_the_end() -> None:
    requests = [blocks(k, max_out=30, runs=(), covered=0, session="s") for k in range(4)]
    simulation = play(requests, load=Load(users=1), max_rows=4, num_pages=60)
    outcome = simulation.outcome
    assert simulation.scheduler.counters.preemptions > 0
    assert outcome.finished == 4 and outcome.output_tokens == 120
    assert len(outcome.ttft) == len(outcome.waiting) == 4


def test_samples_are_all_waited_for() -> None:
    first = blocks(0, n=3, session="s")
    requests = [first, blocks(1, after=(0,), session="s")]
    outcome = play(requests, Encoder(samples=True), Load(users=1), max_rows=3).outcome
    assert outcome.finished == 4 and outcome.admitted[-1] == "1.0"
    assert outcome.ttft[-1] == pytest.approx(1.2)


def test_who_is_refused_holds_nobody_up() -> None:
    requests = [blocks(0, length=50, session="s"), blocks(1, after=(0,), session="s")]
    outcome = play(requests, num_pages=20).outcome
    assert outcome.rejected == {"0.0"} and outcome.finished == 1
    assert outcome.prompt_tokens == 6


# ---- determinism ---------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [Load(users=3), Load(users=2, shuffle=5), Load(rate=0.5, seed=2)])
def test_the_same_run_gives_the_same_figures(load: Load) -> None:
    requests = [blocks(k, runs=(k % 4, 1), max_out=1 + k % 5) for k in range(40)]
    first, second = (facts(play(requests, load=load, num_pages=64)) for _ in range(2))
    assert first == second and first["evicted"] > 0
