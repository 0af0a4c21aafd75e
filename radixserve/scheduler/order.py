"""Orders of the waiting requests: each returns them in the order in which to try admission.

An order only sorts. Admission stops at the first request that does not fit, so nobody is overtaken
because he is big; and no order may let a request be passed for ever.
"""

from collections.abc import Callable, Sequence

from radixserve.cache import PrefixCache
from radixserve.scheduler.request import Request

Order = Callable[[Sequence[Request], PrefixCache], list[Request]]

MAX_PASSED = 32  # later arrivals that may be admitted before a request; then it is next


def fcfs(waiting: Sequence[Request], cache: PrefixCache) -> list[Request]:
    """First come, first served; preempted requests, which came long ago, first of all."""
    return sorted(waiting, key=lambda r: (not r.preempted, r.arrival))


def lpm(waiting: Sequence[Request], cache: PrefixCache) -> list[Request]:
    """Longest cached prefix first, with a bound on how often a request is passed."""

    def key(request: Request) -> tuple[bool, bool, int, int]:
        due = request.passed >= MAX_PASSED
        cached = 0 if due else cache.peek(request.submit.namespace, request.tokens)
        return (not request.preempted, not due, -cached, request.arrival)

    return sorted(waiting, key=key)


def priority(waiting: Sequence[Request], cache: PrefixCache) -> list[Request]:
    """Highest `Submit.priority` first, then first come; a request passed too often is next."""
    return sorted(
        waiting,
        key=lambda r: (
            not r.preempted,
            r.passed < MAX_PASSED,
            -r.submit.priority,
            r.arrival,
        ),
    )


ORDERS: dict[str, Order] = {"default": fcfs, "fcfs": fcfs, "lpm": lpm, "priority": priority}
