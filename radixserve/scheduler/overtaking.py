"""How long the waiting requests were delayed by later arrivals that went first."""

import heapq

SAME_STEP = 0.001  # seconds within which admissions count as of one step


class Overtaking:
    """A bound on being overtaken, at O(log n) for an admission and O(1) for a check.

    The time from one step's admissions to the next step's is charged to the latest arrival among
    those that were admitted. A waiting request is overtaken by all charges to later arrivals that
    were made while it waited: that is the time between the moments when it could have gone and
    somebody who came later went, and the next such moments.

    Only the oldest waiting request needs a check. A charge to arrival `a` is made while a request
    `r` waits if and only if `a` came after `r`: if `a` came before `r` it does not count, and if
    it came after, it was admitted after `r` came, and `r` still waits. So `r` is overtaken by the
    sum of the charges to arrivals after `r`, which is largest for the smallest `r`. That sum is
    all charges without those to arrivals before the oldest; the oldest waiting request is
    replaced by later ones only, so those are added up once, as it moves on.

    If the oldest goes as soon as it was overtaken for the bound, the next oldest was overtaken no
    longer, for the same reason. So nobody is overtaken for longer than the bound and one step's
    charge. A request that goes is charged even if it was the oldest, or preempted and goes again:
    charges to it count against nobody, or only those that came before it.
    """

    def __init__(self) -> None:
        self._total = 0.0  # seconds, all charges
        self._before = 0.0  # of them, to arrivals before the oldest that waits
        self._after: list[tuple[int, float]] = []  # (arrival, seconds), the other charges; a heap
        self._latest = -1  # arrival to which the time since `_since` will be charged
        self._since = 0.0

    def admitted(self, arrival: int, now: float) -> None:
        if self._latest >= 0 and now - self._since < SAME_STEP:
            self._latest = max(self._latest, arrival)
            return
        if self._latest >= 0:
            self._total += now - self._since
            heapq.heappush(self._after, (self._latest, now - self._since))
        self._latest, self._since = arrival, now

    def seconds(self, oldest: int, now: float) -> float:
        """How long the oldest waiting request, by its arrival, was overtaken until now."""
        while self._after and self._after[0][0] <= oldest:
            self._before += heapq.heappop(self._after)[1]
        running = now - self._since if self._latest > oldest else 0.0
        return self._total - self._before + running
