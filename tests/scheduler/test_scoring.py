"""Requests that want log probabilities of their prompts: what they reuse, and who goes first."""

import pytest
from msgspec.structs import replace

from radixserve.config import SchedulerConfig
from radixserve.messages import Namespace, Sampling, pack
from radixserve.scheduler.request import first_scored, reusable
from tests.scheduler.fake import Engine, answer, prompt_logprobs, ready
from tests.scheduler.room import Room
from tests.scheduler.test_scheduler import PROMPT

SCORED = {"prompt_logprobs": 0}


@pytest.mark.parametrize(
    ("start", "length", "first", "most"),
    [(0, 9, 1, 0), (1, 9, 1, 0), (5, 9, 5, 4), (8, 9, 8, 7), (0, 1, 1, None), (9, 9, 9, None)],
)
def test_the_token_before_the_first_is_computed(
    start: int, length: int, first: int, most: int | None
) -> None:
    sampling = Sampling(seed=0, prompt_logprobs=0, logprob_start=start)
    assert first_scored(sampling, length) == first
    assert most is None or reusable(first, length) == most
    assert most is not None or reusable(first, length) > length, "nothing is scored"
    assert first_scored(Sampling(seed=0), length) == length


def test_what_is_cached_is_computed_again_and_said_to_be() -> None:
    engine = Engine(ready())
    engine.ask(PROMPT)
    engine.submit("scored", PROMPT, 3, **SCORED)
    engine.submit("plain", PROMPT, 3)
    engine.run()
    assert engine.scores == {"scored": prompt_logprobs(PROMPT)}
    assert engine.answers["scored"] == engine.answers["plain"] == answer(PROMPT, 3)
    assert engine.cached["scored"] == 0 and engine.cached["plain"] == len(PROMPT) - 1
    stats = engine.scheduler.stats()
    assert stats.reachable_tokens == stats.cached_tokens == len(PROMPT) - 1


def test_others_take_up_what_a_scored_request_computes_but_not_it_theirs() -> None:
    """All come at once, so they share within one step what only one of them computes."""
    engine = Engine(ready(step_tokens=64, max_rows=4))
    engine.submit("plain", PROMPT)
    engine.submit("scored", PROMPT, **SCORED)
    engine.submit("later", PROMPT)
    engine.run()
    assert engine.scores == {"scored": prompt_logprobs(PROMPT)}
    assert engine.cached["scored"] == 0
    assert engine.cached["later"] == len(PROMPT) - 1


def test_a_prompt_whose_scores_are_lost_loses_its_request_alone() -> None:
    engine = Engine(ready(step_tokens=64))
    engine.submit("lost", PROMPT, 9, **SCORED)
    engine.submit("kept", [*PROMPT, 1], 9, **SCORED)
    engine.order()
    result = engine.worker.run(engine.pending.popleft())
    engine.scheduler.done(replace(result, scores=(None, *result.scores[1:])))
    engine.run()
    assert engine.rejected == {"lost": "numerical_error"}
    assert engine.answers["kept"] == answer([*PROMPT, 1], 9)
    assert engine.scores == {"kept": prompt_logprobs([*PROMPT, 1])}
    assert engine.scheduler.cache.available == 64
    assert engine.ask(PROMPT) == (answer(PROMPT, 1), 0), "nobody reuses what it wrote"


def test_shortest_prefill_knows_what_a_scored_request_computes() -> None:
    room = Room("shortest-prefill")
    long, short = list(range(40)), list(range(100, 110))
    room.add(long)
    room.serve()
    room.add([*long, 1], sampling=Sampling(seed=0, prompt_logprobs=0))
    other = room.add(short)
    assert room.queue.tokens == 41 + 10
    assert room.queue.head() is other
    assert room.queue.work(Namespace(), pack([*long, 2])) == 1
    assert room.queue.work(Namespace(), pack([*long, 2]), 4) == 37


def test_the_bound_on_waiting_work_counts_what_is_computed_again() -> None:
    engine = Engine(ready(max_rows=1, step_tokens=8), SchedulerConfig(max_queued_tokens=40))
    engine.ask(PROMPT)
    engine.submit("runs", [4, 4, 4, 4], 30)
    engine.order()
    engine.submit("waits", PROMPT)
    assert not engine.rejected
    for name in ("one", "two", "three"):
        engine.submit(name, [*PROMPT, len(name) % 5], **SCORED)
    assert engine.rejected and set(engine.rejected.values()) == {"queue_full"}
    engine.run()
