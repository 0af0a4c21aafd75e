"""Which tenant goes next: the one that was served least, for a turn of some tokens.

A tenant's virtual time is the tokens that were computed for it. A tenant that is new, or comes back
from idleness, starts behind all that wait: it has no credit for time in which it asked for nothing,
and however many new ones come, who waits already is served before them. What is computed for a
tenant that could not go for a while is booked from where the least served one is.
"""

from collections.abc import Collection

from sortedcontainers import SortedList

TURN = 1024  # tokens by which a tenant may get ahead of the least served one before its turn ends
REMEMBERED = 1024  # idle tenants to remember before looking for those that need not be


class FairShare:
    """`served` is O(1), the rest O(log tenants) for each tenant that was served or is blocked."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}  # virtual times, also of tenants that were active
        self._active: SortedList[tuple[int, str]] = SortedList()  # (virtual time, tenant)
        self._unbooked: dict[str, int] = {}  # tokens since the last turn
        self._turn = ""  # whose it is, if active
        self._now = 0  # virtual time of the least served tenant that could go
        self._limit = REMEMBERED

    def join(self, tenant: str) -> None:
        """The tenant has something waiting, and had nothing."""
        self._book()
        behind = self._active[-1][0] + 1 if self._active else self._now
        time = self._times[tenant] = max(self._times.get(tenant, 0), behind)
        self._active.add((time, tenant))

    def leave(self, tenant: str) -> None:
        """The tenant has nothing waiting any more."""
        self._active.remove((self._times[tenant], tenant))
        if len(self._times) > self._limit:
            active = {name for _, name in self._active}
            self._times = {
                name: time
                for name, time in self._times.items()
                if time > self._now or name in active
            }
            self._limit = max(REMEMBERED, 2 * len(self._times))

    def served(self, tenant: str, tokens: int) -> None:
        """So many tokens were computed for the tenant, whether or not it has more waiting."""
        self._unbooked[tenant] = self._unbooked.get(tenant, 0) + tokens

    def next(self, blocked: Collection[str]) -> str | None:
        """Whose turn it is, of those with something waiting that are not in `blocked`."""
        self._book()
        least = next((item for item in self._active if item[1] not in blocked), None)
        if least is None:
            return None
        time, tenant = least
        self._now = max(self._now, time)
        turn = (self._times.get(self._turn, 0), self._turn)
        stays = turn in self._active and self._turn not in blocked and turn[0] <= self._now + TURN
        if not stays:
            self._turn = tenant
        return self._turn

    def _book(self) -> None:
        for tenant, tokens in self._unbooked.items():
            before = self._times.get(tenant, 0)
            after = self._times[tenant] = max(before, self._now) + tokens
            if (before, tenant) in self._active:
                self._active.remove((before, tenant))
                self._active.add((after, tenant))
        self._unbooked.clear()
