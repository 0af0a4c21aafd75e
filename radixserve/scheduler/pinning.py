"""Carries out the pins of requests, and answers each of them once."""

from radixserve.cache import Lease, PrefixCache
from radixserve.config import SchedulerConfig
from radixserve.messages import Invalidated, Pinned, Rejected, Tokens
from radixserve.scheduler.counters import Counters
from radixserve.scheduler.request import Request

Answer = Tokens | Rejected | Pinned | Invalidated


class Pinning:
    """`outbox` is the scheduler's: (origin, message)."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: PrefixCache,
        counters: Counters,
        outbox: list[tuple[int, Answer]],
    ) -> None:
        self._off = config.disable_radix_cache
        self._cache = cache
        self._counters = counters
        self._outbox = outbox

    def carry_out(self, request: Request, lease: Lease) -> None:
        """Make the pins whose tokens are in the tree by now."""
        page_size = self._cache.page_size
        stored = lease.committed * page_size
        while request.pins:
            pin = request.pins[0]
            wanted = min(pin.tokens, request.prompt_len, request.terms.store)
            if stored < wanted - wanted % page_size:
                return
            del request.pins[0]
            if self._off:
                self._answer(request, 0, "the prefix cache is switched off")
            else:
                self._answer(request, *self._cache.pin(lease, wanted, pin.ttl))

    def answer_rest(self, request: Request) -> None:
        """The request ends: its pins that were not carried out will not be."""
        for _ in request.pins:
            self._answer(request, 0, "the request ended before its prompt was stored")
        request.pins.clear()

    def _answer(self, request: Request, tokens: int, refused: str) -> None:
        self._counters.pins_refused += bool(refused)
        name = request.submit.request_id
        self._outbox.append((request.submit.origin, Pinned(name, tokens, refused)))
