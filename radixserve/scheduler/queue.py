"""The requests that wait, and who is tried next for admission.

Tenants take turns by what was computed for them (`fair.py`). Within a tenant an order decides
(`order.py`), but preempted requests go before all others, and no request is delayed longer than
`max_overtaking_seconds` by later arrivals that go first (`overtaking.py`). Everything is kept up to
date as requests come and go (`waiting.py`): no call looks at all that wait.
"""

from collections.abc import Callable, Collection

from radixserve.cache import PrefixCache
from radixserve.cache.lease import ALL
from radixserve.config import SchedulerConfig
from radixserve.messages import Namespace
from radixserve.scheduler.fair import FairShare
from radixserve.scheduler.order import ORDERS
from radixserve.scheduler.overtaking import Overtaking
from radixserve.scheduler.request import Request
from radixserve.scheduler.waiting import Entry


class Queue:
    """Waiting requests of all tenants.

    A step's admissions are `head`, then `admit` once it has its pages, and again. If it has not,
    nobody else is tried in that step, so nobody is overtaken because he is big.
    """

    def __init__(
        self, config: SchedulerConfig, cache: PrefixCache, clock: Callable[[], float]
    ) -> None:
        self._config = config
        self._cache = cache
        self._clock = clock
        self._lines: dict[str, _Line] = {}  # by tenant; those with something waiting
        self._fair = FairShare()
        self._size = 0
        self._computed = 0  # tokens, of all tenants

    def __len__(self) -> int:
        return self._size

    @property
    def tokens(self) -> int:
        """What is to be computed before all that wait have their first token.

        Uncached prompt tokens; what several share counts once.
        """
        return sum(line.waiting.tokens for line in self._lines.values())

    def work(self, namespace: Namespace, tokens: bytes, most: int = ALL) -> int:
        """By how much `tokens` would grow with this prompt, which can reuse `most` of its tokens.

        It is a page less if it is whole pages that are the beginning of a waiting prompt.
        """
        line = self._lines.get(namespace.tenant) or _Line(self._config, self._cache)
        return line.waiting.work(namespace, tokens, most)

    def add(self, request: Request) -> None:
        """Queue a new request, or one that was preempted."""
        tenant = request.submit.namespace.tenant
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = _Line(self._config, self._cache)
            self._fair.join(tenant)
        line.waiting.add(request, self._computed)
        self._size += 1

    def remove(self, request: Request) -> None:
        """It was aborted."""
        line = self._lines[request.submit.namespace.tenant]
        line.waiting.remove(line.waiting.entries[request.arrival])
        self._left(request)

    def head(self, blocked: Collection[str] = ()) -> Request | None:
        """Who is tried next. Tenants in `blocked` are passed over; that is no overtaking."""
        tenant = self._fair.next(blocked)
        return None if tenant is None else self._lines[tenant].head(self._clock()).request

    def admit(self, request: Request) -> None:
        """It was admitted: it leaves, and whoever came earlier was overtaken."""
        line = self._lines[request.submit.namespace.tenant]
        line.overtaking.admitted(request.arrival, self._clock())
        line.waiting.admit(line.waiting.entries[request.arrival])
        self._left(request)

    def served(self, tenant: str, tokens: int) -> None:
        """So many tokens were computed for the tenant, of prompts or answers."""
        self._fair.served(tenant, tokens)
        self._computed += tokens

    def _left(self, request: Request) -> None:
        self._size -= 1
        tenant = request.submit.namespace.tenant
        if not self._lines[tenant].waiting:
            del self._lines[tenant]
            self._fair.leave(tenant)


class _Line:
    """What waits of one tenant. It ends when nothing does: nobody is left to be overtaken."""

    def __init__(self, config: SchedulerConfig, cache: PrefixCache) -> None:
        self.waiting, self._first = ORDERS[config.schedule_policy](cache)
        self.overtaking = Overtaking()
        self._bound = config.max_overtaking_seconds

    def head(self, now: float) -> Entry:
        waiting = self.waiting
        if waiting.preempted:
            return waiting.entries[waiting.preempted[0]]
        oldest = waiting.oldest()
        if self.overtaking.seconds(oldest.arrival, now) >= self._bound:
            return oldest
        return self._first()
