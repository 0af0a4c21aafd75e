"""What requests and operators may ask of the cache, through the scheduler's messages."""

import pytest
from msgspec.structs import replace

from radixserve.cache import Lease, PrefixCache
from radixserve.config import SchedulerConfig
from radixserve.messages import (
    CacheDirectives,
    Invalidate,
    Namespace,
    Pin,
    SetQuota,
    pack,
    unpack,
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


# ---- tenants -------------------------------------------------------------------------------------


def test_a_tenant_at_its_ceiling_waits_and_others_go_on() -> None:
    engine = Engine(ready(max_rows=8), SchedulerConfig(tenant_quotas="loud=0:48"))
    for i in range(4):
        engine.submit(f"loud{i}", [i, *PROMPT[:30]], 8, tenant="loud")
    engine.submit("quiet", PROMPT, 8, tenant="quiet")
    for _ in range(6):
        engine.order(), engine.finish()
    assert {r.tenant for r in engine.scheduler.running} == {"loud", "quiet"}
    assert len(engine.scheduler.running) == 2
    engine.run()
    assert engine.answers["quiet"] == answer(PROMPT, 8)
    assert all(engine.answers[f"loud{i}"] == answer([i, *PROMPT[:30]], 8) for i in range(4))
    stats = engine.scheduler.stats().tenants
    assert stats["loud"].cached <= 48 and stats["loud"].ceiling == 48
    assert stats["loud"].prompt_tokens == 4 * 31


def test_a_prompt_beyond_the_ceiling_is_refused_by_name() -> None:
    engine = Engine(ready(), SchedulerConfig(tenant_quotas="small=:16,big=32:"))
    engine.submit("a", PROMPT, 2, tenant="small")
    engine.submit("b", PROMPT[:5], 100, tenant="small")
    engine.submit("c", [*PROMPT] * 6, 1, tenant="other")
    engine.run()
    assert engine.rejected == {"a": "quota_exceeded", "c": "quota_exceeded"}
    assert engine.answers["b"] == answer(PROMPT[:5], 11), "the answer fills the ceiling"


def test_a_quota_may_change_while_requests_run() -> None:
    engine = Engine(ready(max_rows=8))
    for name, tenant in (("a", "x"), ("b", "x"), ("c", "y")):
        engine.submit(name, PROMPT if name != "b" else PROMPT[:9], 30, tenant=tenant)
    engine.order(), engine.finish()
    engine.scheduler.set_quota(SetQuota("x", 0, 24))
    engine.run()
    assert engine.rejected == {"a": "quota_exceeded"}
    assert engine.answers["b"] == answer(PROMPT[:9], 15)
    assert engine.answers["c"] == answer(PROMPT, 30)


def test_a_ceiling_preempts_the_tenants_own_requests_only() -> None:
    engine = Engine(ready(num_pages=64, max_rows=8), SchedulerConfig(tenant_quotas="x=0:56"))
    engine.submit("y", PROMPT, 40, tenant="y")
    for i in range(2):
        engine.submit(f"x{i}", [i, *PROMPT[:15]], 38, tenant="x")
    engine.run()
    assert engine.scheduler.counters.preemptions > 0
    assert engine.answers["y"] == answer(PROMPT, 40)
    assert all(engine.answers[f"x{i}"] == answer([i, *PROMPT[:15]], 38) for i in range(2))
    last = next(n for n, step in enumerate(engine.steps) if any(r.start == 79 for r in step.rows))
    (slot,) = (row.slot for row in engine.steps[last].rows if row.start == 79)
    starts = [
        row.start for step in engine.steps[: last + 1] for row in step.rows if row.slot == slot
    ]
    assert starts[-39:] == list(range(41, 80)), "y was never preempted"


# ---- admission by uncached work ------------------------------------------------------------------


def test_a_full_queue_takes_what_is_cached_and_refuses_what_is_not() -> None:
    engine = Engine(ready(max_rows=1), SchedulerConfig(max_queued_tokens=60))
    engine.ask(PROMPT)
    engine.submit("running", [3, 3, 3], 20)
    engine.order()
    for i in range(8):
        engine.submit(f"warm{i}", PROMPT, 1)
    engine.submit("cold", [4, *PROMPT], 1)
    assert engine.rejected == {}
    engine.submit("colder", [2, *PROMPT], 1)
    assert engine.rejected == {"colder": "queue_full"}
    assert engine.refusals["colder"].retry_after >= 1.0
    engine.submit("warm", [*PROMPT[:40], 4], 1)
    assert engine.rejected == {"colder": "queue_full"}
    engine.run()
    assert engine.answers["cold"] == answer([4, *PROMPT], 1)


def test_an_empty_queue_takes_a_prompt_of_any_size() -> None:
    engine = Engine(ready(), SchedulerConfig(max_queued_tokens=1))
    assert engine.ask(PROMPT)[0] == answer(PROMPT, 1)


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


# ---- what once went wrong ------------------------------------------------------------------------


def test_what_a_preempted_request_left_is_copied_as_it_stands() -> None:
    """It is readmitted in the very step in which it was preempted, and takes its own page again."""
    engine = Engine(ready(5, 2, 3, 6))
    engine.submit("r0", [1, 1], 1)
    engine.order()
    engine.submit("r1", [1, 1], 30, cache=CacheDirectives(store_until=3))
    engine.run()
    assert engine.answers["r1"] == answer([1, 1], 8)


def test_the_reserve_of_others_does_not_count_against_a_ceiling() -> None:
    engine = Engine(ready(1000, 4, 16, 64))
    engine.scheduler.set_quota(SetQuota("a", 0, 24))
    for i in range(8):
        engine.submit(f"b{i}", [i, 3, 3], 200, tenant="b")
    engine.order(), engine.finish()
    engine.submit("q", [2] * 20, 1, tenant="a")
    for _ in range(6):
        engine.order(), engine.finish()
    assert engine.answers["q"] == answer([2] * 20, 1)


@pytest.mark.parametrize("others", [0, 3])
def test_a_tenants_pins_give_way_to_its_own_request(others: int) -> None:
    engine = Engine(ready(64, max_rows=8))
    engine.scheduler.set_quota(SetQuota("a", 0, 40))
    engine.submit("p", [1] * 8, 1, tenant="a", cache=pin(8, ttl=1000.0))
    engine.run()
    for i in range(others):
        engine.submit(f"b{i}", [i, 3, 3], 60, tenant="b")
    engine.submit("q", [2] * 36, 1, tenant="a")
    engine.submit("r", [3] * 30, 9, tenant="a", cache=pin(8, ttl=1000.0))
    engine.run()
    assert engine.answers["q"] == answer([2] * 36, 1)
    assert engine.answers["r"] == answer([3] * 30, 9)


def lose(engine: Engine) -> None:
    """The result of the oldest step in flight says that its rows are lost."""
    result = engine.worker.run(engine.pending.popleft())
    engine.scheduler.done(replace(result, tokens=pack([-1] * len(unpack(result.tokens)))))
    engine._collect()


@pytest.mark.parametrize("aborted", [False, True])
def test_what_a_lost_request_wrote_is_gone_with_pins_and_branches(aborted: bool) -> None:
    engine = Engine(ready(step_tokens=64))
    engine.submit("lost", PROMPT, 9, cache=pin(20))
    engine.order()
    engine.submit("branch", [*PROMPT[:30], 4, 4, 4, 4, 4], 9)
    engine.order()
    if aborted:
        engine.scheduler.abort("lost")
    lose(engine)
    engine.run()
    assert engine.ask(PROMPT) == (answer(PROMPT, 1), 0)
    assert engine.scheduler.stats().pages_pinned == 0


def test_new_tenants_do_not_starve_an_old_one() -> None:
    engine = Engine(ready(400, max_rows=1))
    engine.submit("first", PROMPT, 60, tenant="x")
    engine.order(), engine.finish()
    engine.submit("second", PROMPT[:30], 1, tenant="x")
    for i in range(200):
        engine.submit(f"n{i}", [i % 5, i // 5, 1, 1], 8, tenant=f"n{i}")
        engine.order(), engine.finish()
        if "second" in engine.finished:
            break
    assert i < 150
    engine.run()


def test_unstored_prompts_count_whole_in_the_queue() -> None:
    engine = Engine(ready(max_rows=1), SchedulerConfig(max_queued_tokens=100))
    engine.submit("running", [3, 3, 3], 20)
    engine.order()
    for i in range(4):
        engine.submit(f"{i}", PROMPT, 1, cache=NO_STORE)
    assert engine.rejected == {"2": "queue_full", "3": "queue_full"}


def test_a_quota_that_is_lifted_again_leaves_answers_whole() -> None:
    engine = Engine(ready())
    engine.submit("a", PROMPT[:9], 30, tenant="x")
    engine.order(), engine.finish()
    engine.scheduler.set_quota(SetQuota("x", 0, 24))
    engine.scheduler.set_quota(SetQuota("x", 50, 20))
    engine.scheduler.set_quota(SetQuota("x", 0, 0))
    engine.run()
    assert engine.answers["a"] == answer(PROMPT[:9], 30)


def test_an_id_that_is_in_use_is_refused() -> None:
    engine = Engine(ready())
    engine.submit("a", PROMPT, 3)
    engine.submit("a", PROMPT[:5], 3)
    assert engine.rejected == {"a": "invalid_request"}
    engine.run()
    assert engine.answers["a"] == answer(PROMPT, 3)


def test_tenants_that_hold_nothing_are_forgotten() -> None:
    engine = Engine(ready(num_pages=8))
    for i in range(300):
        engine.submit(f"{i}", [i % 5, 1, 2, 3, 4], 1, tenant=f"t{i}")
        engine.run()
    assert len(list(engine.scheduler.cache.tree.accounts)) < 10
    assert len(engine.scheduler.stats().tenants) == 200
