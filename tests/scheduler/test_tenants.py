"""Quotas of tenants, the queue's limits, and faults that a long review found."""

import pytest

from radixserve.config import SchedulerConfig
from radixserve.messages import CacheDirectives, SetQuota
from tests.scheduler.fake import Engine, answer, ready
from tests.scheduler.test_directives import NO_STORE, PROMPT, pin

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


@pytest.mark.parametrize("aborted", [False, True])
def test_what_a_lost_request_wrote_is_gone_with_pins_and_branches(aborted: bool) -> None:
    engine = Engine(ready(step_tokens=64))
    engine.submit("lost", PROMPT, 9, cache=pin(20))
    engine.order()
    engine.submit("branch", [*PROMPT[:30], 4, 4, 4, 4, 4], 9)
    engine.order()
    if aborted:
        engine.scheduler.abort("lost")
    engine.lose()
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
    stats = engine.scheduler.stats()
    assert len(stats.tenants) == 201 and "t199" in stats.tenants and "t200" not in stats.tenants
    assert stats.tenants["other"].prompt_tokens == 100 * 5
    assert sum(t.computed_tokens for t in stats.tenants.values()) == stats.computed_tokens
    held = sum(t.cached + t.running for t in stats.tenants.values())
    assert held == (stats.pages_total - stats.pages_free) * 4, "nothing is left out"
