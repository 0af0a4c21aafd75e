"""Who sends when: sessions, forks, shuffles, open loops."""

from collections.abc import Sequence
from math import inf

import pytest

from radixserve.simulate.clients import Clients, Load, in_turn
from radixserve.simulate.workloads import Recorded


def request(
    number: int, session: str = "s", after: tuple[int, ...] = (), at: float = 0.0
) -> Recorded:
    return Recorded(id=number, session=session, max_out=1, after=after, at=at)


def names(requests: Sequence[Recorded]) -> list[int]:
    return [r.id for r in requests]


def played(requests: Sequence[Recorded], load: Load) -> list[list[int]]:
    """What is sent together, if answers come at once and in turn."""
    clients, waves = Clients(requests, load), []
    for _ in range(100):
        if clients.next_due == inf:
            return waves
        wave = clients.due(clients.next_due)
        waves.append(names(wave))
        for one in wave:
            clients.finished(one, 0.0)
    raise AssertionError("the clients never end")


def test_one_user_plays_sessions_one_after_another_and_sends_forks_together() -> None:
    requests = [
        request(0, "a"),
        request(1, "b"),
        request(2, "a"),
        request(3, "b", (1,)),
        request(4, "a", (0, 2)),
    ]
    assert played(requests, Load(users=1)) == [[0, 2], [4], [1], [3]]
    assert names(list(in_turn(requests))) == [0, 2, 4, 1, 3]
    assert played(requests, Load(users=2)) == [[0, 2, 1], [4, 3]]
    assert played(requests, Load(users=9)) == [[0, 2, 1], [4, 3]]


def test_a_request_waits_for_all_that_it_comes_after() -> None:
    requests = [request(0), request(1), request(2, after=(0, 1))]
    clients = Clients(requests, Load(users=1))
    first, second = clients.due(0.0)
    clients.finished(second, 1.0)
    assert clients.next_due == inf
    clients.finished(first, 2.0)
    assert clients.next_due == 2.0 and names(clients.due(2.0)) == [2]


def test_what_was_left_out_is_not_waited_for() -> None:
    assert played([request(5, after=(1, 2))], Load(users=1)) == [[5]]


def test_a_batch_waits_from_the_start_in_random_order() -> None:
    requests = [request(k, str(k // 10)) for k in range(40)]
    (wave,) = played(requests, Load(users=1, shuffle=0))
    (again,) = played(requests, Load(users=1, shuffle=0))
    (other,) = played(requests, Load(users=1, shuffle=1))
    assert wave == again != other and sorted(wave) == sorted(other) == list(range(40))
    assert wave != sorted(wave)


def test_a_shuffle_keeps_sessions_that_have_ties() -> None:
    requests = [request(k, f"t{k // 2}", (k - 1,) if k % 2 else ()) for k in range(40)]
    requests += [request(k, "loose") for k in range(40, 50)]
    waves = played(requests, Load(users=1, shuffle=3))
    assert sorted(waves[0][:-1]) == list(range(40, 50))  # and the first session's first
    turns = [waves[0][-1], *(k for wave in waves[1:] for k in wave)]
    assert all(b == a + 1 for a, b in zip(turns[::2], turns[1::2], strict=True))
    assert turns != sorted(turns) and sorted(turns) == list(range(40))


def test_sessions_come_at_random_times() -> None:
    requests = [request(k, str(k)) for k in range(2000)]
    clients = Clients(requests, Load(rate=4.0))
    times = []
    while clients.next_due < inf:
        times.append(clients.next_due)
        clients.due(times[-1])
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert len(times) == 2000 and mean == pytest.approx(0.25, rel=0.1)
    assert spread == pytest.approx(mean, rel=0.1)  # as of a Poisson process
    assert Clients(requests, Load(rate=4.0, seed=1)).next_due != times[0]


def test_recorded_times_are_played_faster_and_never_before_what_they_follow() -> None:
    requests = [request(0, "a", at=4.0), request(1, "b", at=1.0), request(2, "a", (0,), at=6.0)]
    clients = Clients(requests, Load(recorded_times=True, speed=2.0))
    assert clients.next_due == 0.5 and names(clients.due(1.9)) == [1]
    (first,) = clients.due(2.0)
    clients.finished(first, 2.5)
    assert clients.next_due == 3.0
    late = Clients(requests, Load(recorded_times=True, speed=2.0))
    late.due(2.0)
    late.finished(first, 7.0)
    assert late.next_due == 7.0
