"""The requests that run: each has a slot at the worker and a lease on its pages."""

from collections.abc import Iterator

from radixserve.cache import PrefixCache
from radixserve.messages import Admit
from radixserve.scheduler.request import Request


class Running:
    """In order of admission, so oldest first."""

    def __init__(self, cache: PrefixCache, slots: int) -> None:
        self._cache = cache
        self._requests: list[Request] = []
        self._slots = list(range(slots - 1, -1, -1))
        self._freed: list[int] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Over those that run now, whoever leaves meanwhile."""
        return iter(tuple(self._requests))

    @property
    def free_slots(self) -> int:
        return len(self._slots)

    def take_freed(self) -> tuple[int, ...]:
        """Slots without a request since the last call; the worker is to be told."""
        freed, self._freed = tuple(self._freed), []
        return freed

    def acquire(self, request: Request, reserve: "Reserve") -> bool:
        """A slot and a lease for the request, if the pages for all its tokens can be had."""
        own = reserve.of(request.tenant)
        namespace, tokens = request.submit.namespace, request.tokens
        lease = self._cache.acquire(
            namespace,
            tokens,
            reserve.pages,
            request.terms,
            own_headroom=own,
            most=request.reusable,
        )
        if lease is None:
            return False
        request.lease = lease
        request.slot, request.told = self._slots.pop(), 0
        self._requests.append(request)
        request.copied = lease.num_tokens % self._cache.page_size
        if not request.preempted:
            evicted = lease.why_lost is not None and lease.why_lost.reason == "evicted"
            request.reachable = lease.num_tokens + (lease.lost if evicted else 0)
        request.reuse(lease.num_tokens)
        return True

    def youngest_first(self) -> list[Request]:
        return self._requests[::-1]

    def reserve(self) -> "Reserve":
        """Pages that the running requests are yet to take."""
        reserve = Reserve()
        for request in self._requests:
            reserve.add(request.tenant, self.still_to_take(request))
        return reserve

    def runs(self, tenant: str) -> bool:
        """Whether anything of the tenant runs."""
        return any(request.tenant == tenant for request in self._requests)

    def still_to_take(self, request: Request) -> int:
        """Pages for the known tokens of a running request, and one more.

        Without the extra page, new admissions would be paid for by preemptions at once.
        """
        if request.lease is None or request.done:
            return 0
        wanted = self._cache.num_pages(request.known + request.unseen)
        return max(wanted - len(request.lease.pages), 0) + 1

    def leave(self, request: Request) -> None:
        """End the lease, if it has not ended, and free the slot."""
        assert not request.in_flight, "a step names the slot"
        if request.lease is not None:
            self.end_lease(request)
        self._requests.remove(request)
        self._slots.append(request.slot)
        self._freed.append(request.slot)
        request.slot = -1

    def end_lease(self, request: Request) -> None:
        """Leave behind what is written, to be found at once, and give back the rest.

        A step in flight may still write one token behind what is left here, and into pages that
        are given back: whatever reads or writes them next is ordered after it.
        """
        lease = request.lease
        assert lease is not None, "it has none, or gave it back"
        if request.lost:
            self._cache.discard(lease)
        else:
            self._cache.commit(lease, request.tokens, request.committable)
            self._cache.release(lease, request.committable)
        request.lease = None

    def lose(self, request: Request) -> None:
        """A step gave no finite numbers for it: nobody may reuse what it computed."""
        request.lost = True
        if request.lease is None:  # it had finished, and is in the tree
            self._cache.invalidate(request.submit.namespace, request.tokens)


class Reserve:
    """Pages that are spoken for, of all and by tenant."""

    def __init__(self) -> None:
        self.pages = 0
        self._by_tenant: dict[str, int] = {}

    def add(self, tenant: str, pages: int) -> None:
        self.pages += pages
        self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + pages

    def of(self, tenant: str) -> int:
        return self._by_tenant.get(tenant, 0)


def admit(request: Request) -> Admit:
    """What the worker is told of a request when it gets its slot."""
    sampling = request.submit.sampling
    history = sampling.needs_history or sampling.min_tokens > 0 or sampling.grammar != ""
    return Admit(
        request.slot,
        sampling,
        bytes(request.tokens) if history else b"",
        request.prompt_len if history else 0,
    )
