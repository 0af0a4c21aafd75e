"""What the scheduler does with given requests: hits, chunks, sharing, preemption, ends."""

import pytest
from msgspec.structs import replace

from radixserve.cache import POLICIES
from radixserve.config import SchedulerConfig
from radixserve.messages import pack, unpack
from radixserve.scheduler.order import ORDERS
from radixserve.scheduler.plan import chunk
from tests.scheduler.fake import Engine, answer, ready

PROMPT = [(7 * i) % 5 for i in range(41)]


def test_a_repeat_hits_all_but_the_last_page() -> None:
    engine = Engine(ready())
    assert engine.ask(PROMPT, 3) == (answer(PROMPT, 3), 0)
    assert engine.ask(PROMPT, 3) == (answer(PROMPT, 3), 40)


def test_an_aligned_repeat_leaves_a_token_to_compute() -> None:
    engine = Engine(ready())
    engine.ask(PROMPT[:40])
    assert engine.ask(PROMPT[:40]) == (answer(PROMPT[:40], 1), 39)


def test_the_next_turn_hits_prompt_and_answer() -> None:
    engine = Engine(ready())
    first, _ = engine.ask(PROMPT, 12)  # 41 + 12 tokens; the last one is not computed
    turn = [*PROMPT, *first, 1, 2, 3]
    assert engine.ask(turn, 2) == (answer(turn, 2), 52)


def test_a_fork_hits_the_trunk() -> None:
    engine = Engine(ready())
    first, _ = engine.ask(PROMPT, 11)
    engine.ask([*PROMPT, *first, 0, 0, 0, 0, 0])
    fork = [*PROMPT, *first, 1, 1, 1, 1, 1]
    assert engine.ask(fork, 2) == (answer(fork, 2), 52)


def test_namespaces_share_nothing() -> None:
    engine = Engine(ready())
    engine.ask(PROMPT, salt="a")
    assert engine.ask(PROMPT, salt="b")[1] == 0
    assert engine.ask(PROMPT, salt="a")[1] == 40


def test_without_the_cache_nothing_is_reused() -> None:
    engine = Engine(ready(), SchedulerConfig(disable_radix_cache=True))
    for _ in range(3):
        assert engine.ask(PROMPT, 3) == (answer(PROMPT, 3), 0)


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_equal_prompts_at_once_are_computed_once(order: str) -> None:
    engine = Engine(ready(max_rows=8), SchedulerConfig(schedule_policy=order))
    for i in range(8):
        engine.submit(f"{i}", PROMPT, 4)
    engine.run()
    assert all(engine.answers[f"{i}"] == answer(PROMPT, 4) for i in range(8))
    assert engine.scheduler.counters.cached_tokens == 7 * 40
    assert engine.worker.tokens_run == 40 + 8 * (1 + 4 - 1)


def test_siblings_share_a_second_level_above_a_cached_one() -> None:
    engine = Engine(ready(max_rows=8))
    engine.ask(PROMPT[:20])
    for i in range(6):
        engine.submit(f"{i}", [*PROMPT, i % 5, i % 3], 2)
    engine.run()
    assert sum(engine.cached[f"{i}"] for i in range(6)) == 20 + 5 * 40


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_an_aborted_leader_hands_over(order: str) -> None:
    engine = Engine(ready(step_tokens=8), SchedulerConfig(schedule_policy=order))
    for name in "ab":
        engine.submit(name, PROMPT, 4)
    engine.order()
    engine.scheduler.abort("a")
    engine.run()
    assert engine.answers == {"b": answer(PROMPT, 4)}


@pytest.mark.parametrize("step_tokens", [4, 5, 7, 16, 64])
def test_chunks_do_not_change_the_answer(step_tokens: int) -> None:
    engine = Engine(ready(step_tokens=step_tokens, max_rows=2))
    assert engine.ask(PROMPT, 9) == (answer(PROMPT, 9), 0)
    limit = max(step_tokens, 5)  # a page beside a token of the other slot
    assert max(sum(max(len(r.tokens) // 4, 1) for r in s.rows) for s in engine.steps) <= limit


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
def test_every_prompt_is_counted_whatever_its_last_chunk(length: int) -> None:
    engine = Engine(ready(step_tokens=16, max_rows=2))
    engine.ask(PROMPT[:length], 3)
    engine.ask(PROMPT[:length], 3)
    stats = engine.scheduler.stats()
    assert (stats.prompt_tokens, stats.cached_tokens) == (2 * length, length - 1)
    assert stats.reachable_tokens == stats.cached_tokens


def test_decodes_go_on_beside_a_long_prefill() -> None:
    engine = Engine(ready(step_tokens=8))
    engine.submit("short", [1, 2], 30)
    engine.order(), engine.finish()
    engine.submit("long", PROMPT * 3, 1)
    for _ in range(8):
        engine.order(), engine.finish()
    assert len(engine.answers["short"]) == 9


def test_a_stop_id_ends_the_answer_and_is_part_of_it() -> None:
    engine = Engine(ready())
    expected = answer(PROMPT, 50, (2,))
    assert expected[-1] == 2
    engine.submit("a", PROMPT, 50, (2,))
    engine.run()
    assert (engine.answers["a"], engine.finished["a"]) == (expected, "stop")


def test_length_ends_the_answer() -> None:
    engine = Engine(ready())
    engine.submit("a", PROMPT, 6)
    engine.run()
    assert (len(engine.answers["a"]), engine.finished["a"]) == (6, "length")


def test_a_small_pool_preempts_and_all_answers_are_right() -> None:
    engine = Engine(ready(num_pages=22, max_rows=4))
    prompts = {f"{i}": [i, *PROMPT[:15]] for i in range(4)}
    for name, prompt in prompts.items():
        engine.submit(name, prompt, 40)
    engine.run()
    assert engine.scheduler.counters.preemptions > 0
    assert engine.answers == {name: answer(p, 40) for name, p in prompts.items()}
    assert set(engine.cached.values()) == {0}, "what a request computed itself is no hit"
    assert engine.scheduler.counters.cached_tokens == 0


def test_a_request_that_the_worker_loses_ends_alone() -> None:
    engine = Engine(ready())
    for name in "ab":
        engine.submit(name, [*PROMPT, ord(name) % 5], 9)
    engine.order(), engine.order()
    step = engine.pending.popleft()
    result = engine.worker.run(step)
    tokens = unpack(result.tokens)
    while not tokens:
        engine.scheduler.done(result)
        engine.order()
        result = engine.worker.run(engine.pending.popleft())
        tokens = unpack(result.tokens)
    engine.scheduler.done(replace(result, tokens=pack([-1, *tokens[1:]])))
    engine.run()
    assert engine.rejected == {"a": "numerical_error"}
    assert engine.answers["b"] == answer([*PROMPT, ord("b") % 5], 9)
    assert engine.scheduler.cache.available == 64


def test_what_a_lost_request_wrote_is_not_reused() -> None:
    engine = Engine(ready(step_tokens=64))
    engine.submit("lost", PROMPT, 9)
    engine.order()
    result = engine.worker.run(engine.pending.popleft())
    engine.scheduler.done(replace(result, tokens=pack([-1])))
    engine.run()
    assert engine.rejected == {"lost": "numerical_error"}
    assert engine.ask(PROMPT) == (answer(PROMPT, 1), 0)


def test_a_decode_leaves_room_for_a_page_of_prefill() -> None:
    engine = Engine(ready(num_pages=248, page_size=64, max_rows=64, step_tokens=1))
    engine.submit("long", [1], 2000)
    engine.order(), engine.finish()
    engine.submit("short", [2], 1)
    engine.submit("longer", [2] * 69, 1)
    for _ in range(4):
        engine.order(), engine.finish()
    assert {"short", "longer"} <= set(engine.finished)


def test_a_hit_that_is_lost_and_computed_again_is_no_hit() -> None:
    prompt = [0, 1, 2, 3, 4, 0, 1]
    engine = Engine(ready(8, 2, 2, 16), SchedulerConfig(radix_eviction_policy="fifo"))
    engine.submit("first", prompt, 1)
    engine.run()
    engine.submit("old", [4, 4, 4], 12)
    engine.order(), engine.finish()
    engine.submit("again", prompt, 5)
    engine.run()
    assert engine.scheduler.counters.preemptions == 1
    assert engine.cached["again"] == 2, "5 of its 7 prompt tokens it computed itself, in the end"


def test_no_tokens_wanted_is_refused() -> None:
    engine = Engine(ready())
    engine.submit("none", PROMPT, 0)
    engine.run()
    assert engine.rejected == {"none": "invalid_request"}


def test_an_answer_that_fills_the_pool_ends_with_length() -> None:
    engine = Engine(ready(num_pages=4))
    engine.submit("a", [1, 2, 3], 1000)
    engine.run()
    assert (len(engine.answers["a"]), engine.finished["a"]) == (13, "length")


def test_a_prompt_that_cannot_fit_is_refused_and_others_are_served() -> None:
    engine = Engine(ready(num_pages=4))
    engine.submit("long", PROMPT[:16], 1)
    engine.submit("empty", [], 1)
    engine.submit("fits", PROMPT[:15], 1)
    engine.run()
    assert engine.rejected == {"long": "context_length_exceeded", "empty": "invalid_request"}
    assert engine.answers["fits"] == answer(PROMPT[:15], 1)


def test_a_full_queue_refuses() -> None:
    engine = Engine(ready(), SchedulerConfig(max_queued_requests=2))
    for i in range(4):
        engine.submit(f"{i}", PROMPT)
    assert engine.rejected == {"2": "queue_full", "3": "queue_full"}
    engine.run()
    assert set(engine.answers) == {"0", "1"}


def test_aborts_in_every_state_give_everything_back() -> None:
    engine = Engine(ready(num_pages=32, max_rows=2))
    for i in range(6):
        engine.submit(f"{i}", [i % 5, *PROMPT], 8)
    for _ in range(5):
        engine.order()
        engine.finish()
    engine.order()
    for i in (0, 3, 5, 0, 1, 2, 4):
        engine.scheduler.abort(f"{i}")
    engine.scheduler.abort("never seen")
    engine.run()
    cache = engine.scheduler.cache
    assert cache.available == cache.pool.num_pages
    assert not engine.scheduler.running and not engine.scheduler.waiting
    assert engine.ask(PROMPT * 3, 4)[0] == answer(PROMPT * 3, 4)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_evicted_prefixes_are_computed_again(policy: str) -> None:
    engine = Engine(ready(num_pages=16), SchedulerConfig(radix_eviction_policy=policy))
    for first in (0, 1, 2, 3, 0):
        prompt = [first, *PROMPT[:30]]
        assert engine.ask(prompt, 5)[0] == answer(prompt, 5)
    assert engine.scheduler.cache.evicted_pages > 0


def test_priority_goes_first() -> None:
    engine = Engine(ready(max_rows=1), SchedulerConfig(schedule_policy="priority"))
    engine.submit("running", PROMPT, 2)
    engine.order()
    engine.submit("low", [1, 2, 3], 1, priority=0)
    engine.submit("high", [3, 2, 1], 1, priority=5)
    engine.run()
    assert engine.first_step["high"] < engine.first_step["low"]


@pytest.mark.parametrize(
    ("start", "to_compute", "budget", "expected"),
    [(0, 10, 16, 10), (0, 40, 16, 16), (0, 40, 15, 12), (6, 40, 3, 2), (6, 40, 1, 0), (5, 1, 1, 1)],
)
def test_chunks_end_at_page_borders(
    start: int, to_compute: int, budget: int, expected: int
) -> None:
    assert chunk(start, to_compute, budget, page_size=4) == expected
