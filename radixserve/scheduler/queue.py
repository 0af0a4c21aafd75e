"""The requests that wait, and how often each of them was passed by a later one."""

from bisect import bisect_right
from collections.abc import Iterable

from radixserve.cache import PrefixCache
from radixserve.scheduler.order import Order
from radixserve.scheduler.request import Request


class Queue:
    """Waiting requests. An `Order` says who is tried first; a step's admissions leave together."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._requests: dict[Request, None] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        self._requests[request] = None

    def remove(self, request: Request) -> None:
        del self._requests[request]

    def in_order(self, cache: PrefixCache) -> list[Request]:
        """All, in the order in which to try admission."""
        return self._order(list(self._requests), cache)

    def leave(self, admitted: Iterable[Request]) -> None:
        """Take out who was admitted in one step, and count whom they passed."""
        arrivals = []
        for request in admitted:
            del self._requests[request]
            arrivals.append(request.arrival)
        if arrivals:
            arrivals.sort()
            for request in self._requests:
                request.passed += len(arrivals) - bisect_right(arrivals, request.arrival)
