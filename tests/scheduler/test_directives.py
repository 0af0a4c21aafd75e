"""What requests and operators may ask of the cache, through the scheduler's messages."""

import pytest

from radixserve.cache import Lease, PrefixCache
from radixserve.config import SchedulerConfig
from radixserve.messages import (
    CacheDirectives,
    Invalidate,
    Namespace,
    Pin,
    pack,
)
from tests.scheduler.fake import Engine, answer, ready

PROMPT = [(7 * i) % 5 for i in range(41)]
NO_STORE = CacheDirectives(store_until=0)


def pin(tokens: int, ttl: float = 60.0) -> CacheDirectives:
    return CacheDirectives(pins=(Pin(tokens, ttl),))


def fill(engine: Engine, times: int = 12) -> None:
    """Other prompts, more than the pool holds."""
    for first in range(times):
        prompt = [first % 5, first // 5, *[3] * 30]
        assert engine.ask(prompt, 2)[0] == answer(prompt, 2)


# ---- copies --------------------------------------------------------------------------------------


def test_the_next_turn_hits_to_the_token() -> None:
    engine = Engine(ready())
    first, _ = engine.ask(PROMPT, 10)  # 41 + 10 tokens, of which 50 are computed
    turn = [*PROMPT, *first, 1, 2, 3]
    assert engine.ask(turn, 2) == (answer(turn, 2), 50)
    assert engine.scheduler.stats().copied_tokens == 2
    whole = Engine(ready(), SchedulerConfig(disable_page_copy=True))
    whole.ask(PROMPT, 10)
    assert whole.ask(turn, 2) == (answer(turn, 2), 48)


def stopped_early(engine: Engine) -> list[int]:
    """Tokens of a request that a stop id has ended while a step in flight still names it."""
    said = answer(PROMPT, 12)
    stop = next(token for token in said if 1 <= said.index(token) < 9)
    engine.submit("first", PROMPT, 12, stop_ids=(stop,))
    while "first" not in engine.finished:
        assert engine.order() or engine.pending
        engine.order()
        engine.finish()
    assert engine.finished["first"] == "stop" and engine.pending
    return [*PROMPT, *engine.answers["first"]]


def test_a_turn_that_comes_at_once_hits_to_the_token() -> None:
    engine = Engine(ready())
    turn = [*stopped_early(engine), 1, 2, 3]
    engine.submit("next", turn, 4)
    engine.order()
    engine.run()
    assert engine.answers["next"] == answer(turn, 4)
    assert engine.cached["next"] == len(turn) - 3


def test_what_the_last_step_of_a_finished_request_loses_is_gone() -> None:
    engine = Engine(ready())
    tokens = stopped_early(engine)
    engine.lose()
    engine.run()
    assert engine.ask([*tokens, 1], 1)[1] == 0


def test_siblings_of_one_step_copy_what_the_first_of_them_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a page cannot be copied before the step's rows run; were it, this would be seen."""

    def traffic() -> Engine:
        engine = Engine(ready(max_rows=4, step_tokens=64))
        for i in range(4):
            engine.submit(f"{i}", [*PROMPT[:18], i, 3, 3, 3], 3)  # differ inside a page
        engine.run()
        return engine

    engine = traffic()
    assert len({row.slot for row in engine.steps[0].rows}) == 4, "all in one step"
    assert engine.answers == {f"{i}": answer([*PROMPT[:18], i, 3, 3, 3], 3) for i in range(4)}
    assert sorted(engine.cached.values()) == [0, 18, 18, 18]
    acquire = PrefixCache.acquire

    def early(self: PrefixCache, *args: object, **more: object) -> Lease | None:
        lease = acquire(self, *args, **more)  # type: ignore[arg-type]
        if lease is not None:
            lease.source_live = False
        return lease

    monkeypatch.setattr(PrefixCache, "acquire", early)
    assert traffic().answers != engine.answers


# ---- pins ----------------------------------------------------------------------------------------


def test_a_pin_is_answered_and_kept() -> None:
    engine = Engine(ready(num_pages=48))
    engine.submit("a", PROMPT, 2, cache=pin(40))
    engine.run()
    assert [(p.tokens, p.refused) for p in engine.pinned["a"]] == [(40, "")]
    fill(engine)
    assert engine.ask(PROMPT)[1] == 40
    engine.now = 61.0
    fill(engine)
    engine.now = 200.0
    fill(engine)
    assert engine.ask(PROMPT)[1] < 4, "at most a part of somebody's first page"


def test_a_pin_over_the_budget_is_refused_and_the_request_is_served() -> None:
    engine = Engine(ready(num_pages=20))
    engine.submit("a", PROMPT, 2, cache=pin(40))
    engine.run()
    (said,) = engine.pinned["a"]
    assert said.tokens == 0 and "budget" in said.refused
    assert engine.answers["a"] == answer(PROMPT, 2)
    assert engine.scheduler.stats().pins_refused == 1


def test_several_pins_of_a_prompt_each_get_an_answer() -> None:
    engine = Engine(ready(step_tokens=8))
    pins = CacheDirectives(pins=(Pin(20, 5.0), Pin(8, 60.0), Pin(3, 60.0), Pin(1000, 1.0)))
    engine.submit("a", PROMPT, 2, cache=pins)
    engine.run()
    assert [p.tokens for p in engine.pinned["a"]] == [0, 8, 20, 40]
    assert engine.scheduler.stats().pages_pinned == 10


@pytest.mark.parametrize("cache", [NO_STORE, CacheDirectives(store_until=8)])
def test_what_is_not_stored_is_not_pinned(cache: CacheDirectives) -> None:
    engine = Engine(ready())
    both = CacheDirectives(cache.store_until, pins=(Pin(40, 60.0),))
    engine.submit("a", PROMPT, 2, cache=both)
    engine.run()
    (said,) = engine.pinned["a"]
    assert said.tokens == (8 if cache.store_until else 0) and bool(said.refused) != bool(
        said.tokens
    )


def test_a_pin_of_a_request_that_ends_early_is_answered() -> None:
    engine = Engine(ready(step_tokens=8))
    engine.submit("a", PROMPT, 2, cache=pin(40))
    engine.order()
    engine.scheduler.abort("a")
    engine.run()
    assert "ended" in engine.pinned["a"][0].refused


def test_pins_give_way_before_a_request_starves() -> None:
    engine = Engine(ready(num_pages=16), SchedulerConfig(pin_budget=0.5))
    engine.submit("a", PROMPT[:33], 1, cache=pin(32))
    engine.run()
    long = [1, *PROMPT, 2, 3]
    assert engine.ask(long, 19) == (answer(long, 19), 0)
    assert engine.scheduler.cache.pins.broken == 1
    engine.submit("b", PROMPT[:33], 1, cache=pin(32))
    engine.run()
    short = [4, *PROMPT[:20]]
    assert engine.ask(short, 43) == (answer(short, 43), 0), "it grows into the pin's pages"
    assert engine.scheduler.cache.pins.broken == 2


@pytest.mark.parametrize(
    "cache",
    [
        CacheDirectives(store_until=-2),
        pin(0),
        pin(-3),
        pin(8, ttl=0.0),
        pin(8, ttl=float("nan")),
        pin(8, ttl=float("inf")),
        CacheDirectives(pins=(Pin(8, 1.0),) * 17),
    ],
)
def test_directives_that_mean_nothing_are_refused(cache: CacheDirectives) -> None:
    engine = Engine(ready())
    engine.submit("a", PROMPT, 2, cache=cache)
    assert engine.rejected == {"a": "invalid_request"}


# ---- what is stored ------------------------------------------------------------------------------


def test_no_store_and_read_only_leave_nothing() -> None:
    for cache in (NO_STORE, CacheDirectives(read_only=True)):
        engine = Engine(ready())
        engine.submit("a", PROMPT, 6, cache=cache)
        engine.run()
        assert engine.answers["a"] == answer(PROMPT, 6)
        assert engine.scheduler.cache.tree.num_pages == 0
        assert engine.ask(PROMPT, 2) == (answer(PROMPT, 2), 0)
        assert engine.ask(PROMPT, 2, cache=cache) == (answer(PROMPT, 2), 40), "it may hit"


def test_store_until_a_token() -> None:
    engine = Engine(ready())
    engine.submit("a", PROMPT, 6, cache=CacheDirectives(store_until=18))
    engine.run()
    assert engine.ask(PROMPT, 2) == (answer(PROMPT, 2), 18)


def test_unstored_requests_survive_a_small_pool() -> None:
    engine = Engine(ready(num_pages=22, max_rows=4))
    prompts = {f"{i}": [i, *PROMPT[:15]] for i in range(4)}
    for name, prompt in prompts.items():
        engine.submit(name, prompt, 40, cache=NO_STORE)
    engine.run()
    assert engine.scheduler.counters.preemptions > 0
    assert engine.answers == {name: answer(p, 40) for name, p in prompts.items()}


# ---- invalidation --------------------------------------------------------------------------------


def test_invalidation_while_requests_run() -> None:
    engine = Engine(ready(max_rows=8))
    engine.ask(PROMPT, salt="x")
    for name in "ab":
        engine.submit(name, [*PROMPT, ord(name) % 5], 12, salt="x")
    engine.order(), engine.finish()
    engine.scheduler.invalidate(Invalidate("i", 0, Namespace(salt="x"), pack(PROMPT[:20])))
    engine.submit("c", PROMPT, 3, salt="x")
    engine.run()
    assert engine.invalidated["i"] >= 40
    assert {n: engine.answers[n] for n in "ab"} == {
        n: answer([*PROMPT, ord(n) % 5], 12) for n in "ab"
    }
    assert (engine.answers["c"], engine.cached["c"]) == (answer(PROMPT, 3), 0)
    assert engine.ask(PROMPT, salt="x")[1] == 40, "it was stored again by a later request"


def test_all_namespaces_are_emptied_while_requests_run() -> None:
    engine = Engine(ready(max_rows=8, num_pages=96))
    engine.submit("pinned", PROMPT, 2, cache=pin(16))
    engine.run()
    engine.ask(PROMPT, salt="x")
    engine.submit("a", [*PROMPT, 1], 12, salt="x")
    engine.order(), engine.finish()
    engine.scheduler.invalidate(Invalidate("i", 0, None))
    for name, salt in (("b", "x"), ("c", "")):
        engine.submit(name, PROMPT, 3, salt=salt)
    engine.run()
    assert engine.invalidated["i"] >= 80
    assert engine.answers["a"] == answer([*PROMPT, 1], 12)
    assert (engine.cached["b"], engine.cached["c"]) == (0, 0)
    assert engine.scheduler.stats().pages_pinned == 0
    assert engine.ask(PROMPT, salt="x")[1] == engine.ask(PROMPT)[1] == 40, "stored again"


# ---- the ledger ----------------------------------------------------------------------------------


def test_reachable_tokens_are_what_an_endless_cache_would_hit() -> None:
    engine = Engine(ready(num_pages=16))
    engine.ask(PROMPT)
    fill(engine, 3)
    before = engine.scheduler.stats()
    assert engine.ask(PROMPT)[1] == 0
    stats = engine.scheduler.stats()
    assert stats.reachable_tokens - before.reachable_tokens == 40
    assert stats.cached_tokens == before.cached_tokens


def test_a_trunk_that_another_request_computes_again_is_reachable_once() -> None:
    engine = Engine(ready(num_pages=40, max_rows=2))
    for name in "ab":
        engine.submit(name, PROMPT, 2)
    engine.run()
    stats = engine.scheduler.stats()
    assert (stats.cached_tokens, stats.reachable_tokens) == (40, 40)
