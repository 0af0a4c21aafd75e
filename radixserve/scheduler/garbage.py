"""Garbage collection that does not hold up a step.

The tree is a great many objects that live long, and what leaves it leaves no cycles behind.
Python's own full collection walks all of them in the middle of a step: 40 to 90 ms at a million
cached tokens. So it is off; the objects of the last second are looked at with each heartbeat, and
all of them when there is nothing to do.
"""

import gc

FULL_EVERY = 60.0  # seconds


class Collector:
    """Takes garbage collection in hand, for the whole process."""

    def __init__(self, now: float) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        self._full = now

    def beat(self, now: float, *, idle: bool) -> None:
        """About once a second."""
        if idle and now - self._full >= FULL_EVERY:
            self._full = now
            gc.collect()
        else:
            gc.collect(1)
