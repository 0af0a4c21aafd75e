"""Random traffic over tiny pools: every answer right, every law kept, nobody forgotten."""

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from radixserve.config import SchedulerConfig
from radixserve.scheduler.order import ORDERS
from tests.scheduler.fake import Engine, answer, ready

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

    @initialize(pages=st.integers(6, 20), rows=st.integers(1, 4), tokens=st.integers(1, 12))
    def start(self, pages: int, rows: int, tokens: int) -> None:
        worker = ready(pages, self.page_size, rows, tokens)
        self.engine = Engine(worker, SchedulerConfig(schedule_policy=self.order_name))
        self.asked: dict[str, tuple[list[int], int, tuple[int, ...]]] = {}
        self.left: set[str] = set()

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=12),
        max_tokens=st.integers(1, 12),
        stops=st.sampled_from([(), (0,), (1, 3)]),
        copies=st.integers(1, 3),
    )
    def submit(
        self, prompt: list[int], max_tokens: int, stops: tuple[int, ...], copies: int
    ) -> None:
        for _ in range(copies):
            name = f"r{len(self.asked)}"
            self.asked[name] = (prompt, max_tokens, stops)
            self.engine.submit(name, prompt, max_tokens, stops)

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
        room = engine.scheduler.max_total_tokens
        for name, (prompt, max_tokens, stops) in self.asked.items():
            if name in engine.rejected:
                assert len(prompt) >= room
            elif name not in self.left:
                expected = answer(prompt, min(max_tokens, room - len(prompt)), stops)
                assert engine.answers[name] == expected
                assert engine.finished[name] == ("stop" if expected[-1] in stops else "length")
        cache = engine.scheduler.cache
        assert cache.available == cache.pool.num_pages and not cache.leases
        assert engine.scheduler.running.free_slots == engine.scheduler.max_running


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("order", sorted(ORDERS))
def test_every_answer_is_right(order: str, page_size: int) -> None:
    fields: dict[str, Any] = {"order_name": order, "page_size": page_size}
    run_state_machine_as_test(type("Machine", (Traffic,), fields), settings=SETTINGS)
