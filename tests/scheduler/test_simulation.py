"""Random traffic over tiny pools: every answer right, every law kept, nobody forgotten."""

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from radixserve.config import SchedulerConfig
from radixserve.messages import CacheDirectives, Invalidate, Namespace, Pin, SetQuota, pack
from radixserve.scheduler.order import ORDERS
from tests.scheduler.fake import Engine, answer, prompt_logprobs, ready

SETTINGS = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
)


class Traffic(RuleBasedStateMachine):
    """Clients come and go while up to two steps are in flight."""

    order_name = "fcfs"
    page_size = 2
    directives: st.SearchStrategy[CacheDirectives] = st.just(CacheDirectives())
    tenants = st.just("")

    @initialize(pages=st.integers(6, 20), rows=st.integers(1, 4), tokens=st.integers(1, 12))
    def start(self, pages: int, rows: int, tokens: int) -> None:
        worker = ready(pages, self.page_size, rows, tokens)
        self.engine = Engine(worker, SchedulerConfig(schedule_policy=self.order_name))
        self.asked: dict[str, tuple[list[int], int, tuple[int, ...]]] = {}
        self.scored_from: dict[str, int] = {}
        self.pins: dict[str, int] = {}
        self.left: set[str] = set()

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=12),
        max_tokens=st.integers(1, 12),
        stops=st.sampled_from([(), (0,), (1, 3)]),
        copies=st.integers(1, 3),
        scored_from=st.sampled_from([-1, -1, 0, 3]),
        choice=st.data(),
    )
    def submit(
        self,
        prompt: list[int],
        max_tokens: int,
        stops: tuple[int, ...],
        copies: int,
        scored_from: int,
        choice: st.DataObject,
    ) -> None:
        cache, tenant = choice.draw(self.directives), choice.draw(self.tenants)
        for _ in range(copies):
            name = f"r{len(self.asked)}"
            self.asked[name] = (prompt, max_tokens, stops)
            self.pins[name] = len(cache.pins)
            self.scored_from[name] = scored_from
            self.engine.submit(
                name,
                prompt,
                max_tokens,
                stops,
                cache=cache,
                tenant=tenant,
                prompt_logprobs=min(scored_from, 0),
                logprob_start=max(scored_from, 0),
            )
            scored_from = -1 if scored_from == 3 else scored_from  # plain ones beside scored ones

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.asked:
            name = data.draw(st.sampled_from(sorted(self.asked)))
            if name not in self.engine.finished:
                self.left.add(name)
            self.engine.scheduler.abort(name)

    @rule(times=st.integers(1, 4))
    def work(self, times: int) -> None:
        for _ in range(times):
            self.engine.order()
            self.engine.finish()

    @rule()
    def order_ahead(self) -> None:
        self.engine.order()

    @rule()
    def finish_one(self) -> None:
        self.engine.finish()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        engine.run()
        for name in self.asked:
            if name in engine.rejected:
                self.rightly_rejected(name)
            elif name not in self.left:
                self.rightly_answered(name)
                assert engine.scores.get(name, []) == self.expected_scores(name)
                assert len(engine.pinned.get(name, [])) == self.pins[name], "each pin is answered"
            else:
                found = engine.scores.get(name, [])
                assert found == self.expected_scores(name)[: len(found)]
        cache = engine.scheduler.cache
        while cache.pins.give_way():
            pass
        assert not cache.tree.gone
        assert cache.available == cache.pool.num_pages and not cache.leases
        assert engine.scheduler.running.free_slots == engine.scheduler.max_running

    def expected_scores(self, name: str) -> list[float]:
        start = self.scored_from[name]
        return prompt_logprobs(self.asked[name][0], start) if start >= 0 else []

    def rightly_rejected(self, name: str) -> None:
        assert len(self.asked[name][0]) >= self.engine.scheduler.max_total_tokens

    def rightly_answered(self, name: str) -> None:
        prompt, max_tokens, stops = self.asked[name]
        room = self.engine.scheduler.max_total_tokens - len(prompt)
        expected = answer(prompt, min(max_tokens, room), stops)
        assert self.engine.answers[name] == expected
        assert self.engine.finished[name] == ("stop" if expected[-1] in stops else "length")


class DirectedTraffic(Traffic):
    """The same with pins, no-store, tenants with quotas that change, and invalidation."""

    directives = st.builds(
        CacheDirectives,
        store_until=st.sampled_from([-1, -1, 0, 3]),
        read_only=st.sampled_from([False, False, True]),
        pins=st.lists(
            st.builds(Pin, st.integers(1, 12), st.sampled_from([1.0, 9.0])), max_size=2
        ).map(tuple),
    )
    tenants = st.sampled_from("ab")

    @rule(seconds=st.sampled_from([0.5, 3.0]))
    def wait(self, seconds: float) -> None:
        self.engine.now += seconds

    @rule(tenant=st.sampled_from("ab"), prefix=st.lists(st.integers(0, 1), max_size=6))
    def invalidate(self, tenant: str, prefix: list[int]) -> None:
        message = Invalidate("", 0, Namespace(tenant=tenant), pack(prefix))
        self.engine.scheduler.invalidate(message)

    @rule(
        tenant=st.sampled_from("ab"),
        floor=st.sampled_from([0, 4, 8]),
        ceiling=st.sampled_from([0, 0, 12, 20]),
    )
    def bound(self, tenant: str, floor: int, ceiling: int) -> None:
        self.engine.scheduler.set_quota(SetQuota(tenant, floor, ceiling))

    def rightly_rejected(self, name: str) -> None:
        code = self.engine.rejected[name]
        assert code == "quota_exceeded" or super().rightly_rejected(name) is None

    def rightly_answered(self, name: str) -> None:
        """A quota may have cut the answer short."""
        prompt, max_tokens, stops = self.asked[name]
        given = self.engine.answers[name]
        assert given == answer(prompt, min(max_tokens, len(given)), stops)
        if len(given) < max_tokens:
            assert self.engine.finished[name] == ("stop" if given[-1] in stops else "length")


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("order", sorted(ORDERS))
def test_every_answer_is_right(order: str, page_size: int) -> None:
    fields: dict[str, Any] = {"order_name": order, "page_size": page_size}
    run_state_machine_as_test(type("Machine", (Traffic,), fields), settings=SETTINGS)


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("order", ["default", "fcfs", "priority"])
def test_every_answer_is_right_under_directives(order: str, page_size: int) -> None:
    fields: dict[str, Any] = {"order_name": order, "page_size": page_size}
    run_state_machine_as_test(type("Machine", (DirectedTraffic,), fields), settings=SETTINGS)
