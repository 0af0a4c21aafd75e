"""Who sends what and when, in seconds of a virtual clock.

A session is the requests of one conversation, agent or task. In an open session a request is sent
as soon as the requests it comes `after` are finished; those that come after nothing go together.
"""

import heapq
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from radixserve.simulate.workloads import Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How the requests of a workload arrive. Either `users`, or `rate`, or `recorded_times`."""

    users: int = 0  # closed loop: sessions open at once
    rate: float = 0.0  # open loop: sessions a second, at random times
    recorded_times: bool = False  # open loop: as the trace says, from when its session opens
    speed: float = 1.0  # so many times as fast as recorded
    shuffle: int | None = None  # seed of a random order; requests tied to none lose their session
    seed: int = 0  # of the random times


class Clients:
    """Hands out requests as they fall due. `next_due` is when to ask again, `inf` for never."""

    def __init__(self, requests: Sequence[Recorded], load: Load) -> None:
        known = {request.id for request in requests}
        self._load = load
        self._waits = {r.id: len(known.intersection(r.after)) for r in requests}
        self._followers: dict[int, list[Recorded]] = {}
        for request in requests:
            for earlier in known.intersection(request.after):
                self._followers.setdefault(earlier, []).append(request)
        self._session: dict[int, int] = {}  # request -> number of its session, if it has one
        self._left: list[int] = []  # per session: requests that are not finished
        self._earliest: dict[int, float] = {}  # when a request may leave at the earliest
        self._due: list[tuple[float, int, Recorded]] = []  # a heap
        self._sent = 0
        self._closed: deque[list[Recorded]] = deque()
        at_once, sessions = self._arrange(requests)
        for number, session in enumerate(sessions):
            self._left.append(len(session))
            self._session |= dict.fromkeys((request.id for request in session), number)
        for request in at_once:
            self._open([request], 0.0)
        self._start(sessions)

    @property
    def next_due(self) -> float:
        return self._due[0][0] if self._due else inf

    def due(self, now: float) -> list[Recorded]:
        """Take out what is to be sent by now, in order."""
        out = []
        while self._due and self._due[0][0] <= now:
            out.append(heapq.heappop(self._due)[2])
        return out

    def finished(self, request: Recorded, now: float) -> None:
        """All answers to a request are there: those that come after it may go."""
        for follower in self._followers.get(request.id, ()):
            self._waits[follower.id] -= 1
            if not self._waits[follower.id]:
                self._send(follower, now)
        number = self._session.get(request.id)
        if number is None:
            return
        self._left[number] -= 1
        if not self._left[number] and self._closed:
            self._open(self._closed.popleft(), now)

    def _arrange(self, requests: Sequence[Recorded]) -> tuple[list[Recorded], list[list[Recorded]]]:
        """Requests that all wait from the start, and the sessions in the order of opening."""
        if self._load.shuffle is None:
            return [], serial(requests)
        tied = set(self._followers) | {r.id for r in requests if self._waits[r.id]}
        loose = [request for request in requests if request.id not in tied]
        sessions = serial(request for request in requests if request.id in tied)
        order = random.Random(self._load.shuffle)
        if not self._load.users:  # open loop: everyone has a time of his own
            sessions += [[request] for request in loose]
            loose = []
        order.shuffle(loose)
        order.shuffle(sessions)
        return loose, sessions

    def _start(self, sessions: list[list[Recorded]]) -> None:
        if users := self._load.users:
            self._closed.extend(sessions)
            for _ in range(min(users, len(sessions))):
                self._open(self._closed.popleft(), 0.0)
            return
        chance, now = random.Random(self._load.seed), 0.0
        for session in sessions:
            if self._load.rate:
                now += chance.expovariate(self._load.rate)
            self._open(session, now)

    def _open(self, session: list[Recorded], now: float) -> None:
        for request in session:
            if self._load.recorded_times:
                self._earliest[request.id] = now + request.at / self._load.speed
            if not self._waits[request.id]:
                self._send(request, now)

    def _send(self, request: Recorded, now: float) -> None:
        due = max(now, self._earliest.get(request.id, now))
        heapq.heappush(self._due, (due, self._sent, request))
        self._sent += 1


def in_turn(requests: Sequence[Recorded]) -> Iterator[Recorded]:
    """All requests as one user sends them, each when the one before it is answered."""
    clients = Clients(requests, Load(users=1))
    while clients.next_due < inf:
        for request in clients.due(clients.next_due):
            yield request
            clients.finished(request, 0.0)


def serial(requests: Iterable[Recorded]) -> list[list[Recorded]]:
    """Sessions in order of their first requests."""
    sessions: dict[str, list[Recorded]] = {}
    for request in requests:
        sessions.setdefault(request.session, []).append(request)
    return list(sessions.values())
