"""Tenants take turns by what was computed for them."""

import pytest

from radixserve.scheduler.order import ORDERS
from tests.scheduler.room import TRUNK, Room


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_a_quiet_tenant_is_soon_served_beside_a_loud_one(order: str) -> None:
    room = Room(order, pages=2000, page=16)
    for i in range(3000):
        room.add([*TRUNK, i] * 5, tenant="loud")
    for _ in range(500):
        room.serve()
    quiet = room.add([5] * 50, tenant="quiet")
    before = 0
    while room.serve() is not quiet:
        before += 1
    assert before <= 1024 // 13 + 1, "a turn of the loud one, at least 13 new tokens each"


def test_tenants_get_equal_shares_and_a_group_is_not_torn_apart() -> None:
    room = Room("fcfs", pages=2000, page=16)
    for i in range(600):
        room.add([i] * 100, tenant="large")
    for i in range(6000):
        room.add([i] * 10, tenant="small")
    turns, tokens, last = 0, {"large": 0, "small": 0}, ""
    for _ in range(2000):
        request = room.serve()
        tenant = request.submit.namespace.tenant
        tokens[tenant] += request.known
        turns += tenant != last
        last = tenant
    assert abs(tokens["large"] - tokens["small"]) <= 2 * 1024 + 200
    assert turns <= sum(tokens.values()) / 1024 + 2


def test_idleness_gives_no_credit() -> None:
    room = Room("fcfs", pages=2000, page=16)
    for i in range(900):
        room.add([i] * 100, tenant="busy")
    for _ in range(600):  # 60,000 tokens while the other is idle
        room.serve()
    for i in range(300):
        room.add([i] * 100, tenant="back")
    served = [room.serve().submit.namespace.tenant for _ in range(100)]
    assert 35 <= served.count("back") <= 65


def test_blocked_tenants_are_passed_over_and_come_back_without_credit() -> None:
    room = Room("fcfs", pages=2000, page=16)
    assert room.queue.head(("full",)) is None
    for i in range(300):
        room.add([i] * 100, tenant="full")
    assert room.queue.head(("full",)) is None
    for i in range(300):
        room.add([i] * 100, tenant="free")
    for _ in range(200):
        head = room.queue.head(("full",))
        assert head is not None and head.submit.namespace.tenant == "free" and room.admit(head)
        room.end(head)
    served = [room.serve().submit.namespace.tenant for _ in range(100)]
    assert 35 <= served.count("full") <= 65
