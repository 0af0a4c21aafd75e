"""A queue over a real cache, without a scheduler: whoever is admitted is computed at once."""

from radixserve.cache import POLICIES, PagePool, PrefixCache, RadixTree
from radixserve.config import SchedulerConfig
from radixserve.messages import Namespace, Sampling, Submit, pack
from radixserve.scheduler.order import ORDERS
from radixserve.scheduler.queue import Queue
from radixserve.scheduler.request import Request

PAGE = 2
TRUNK = list(range(100, 140))
CACHE_AWARE = sorted(ORDERS.keys() - {"fcfs", "priority"})


class Room:
    """Its clock is moved by hand."""

    def __init__(self, order: str, pages: int = 1000, bound: float = 1e9, page: int = PAGE) -> None:
        self.now = 0.0
        self.cache = PrefixCache(PagePool(pages), RadixTree(page, POLICIES["lru"]))
        config = SchedulerConfig(schedule_policy=order, max_overtaking_seconds=bound)
        self.queue = Queue(config, self.cache, lambda: self.now)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.arrivals = 0

    def add(
        self,
        prompt: list[int],
        tenant: str = "",
        salt: str = "",
        priority: int = 0,
        sampling: Sampling = Sampling(seed=0),  # noqa: B008 - frozen
    ) -> Request:
        submit = Submit(
            request_id=f"{self.arrivals}",
            origin=0,
            prompt=pack(prompt),
            sampling=sampling,
            max_tokens=1,
            namespace=Namespace(tenant=tenant, salt=salt),
            priority=priority,
        )
        request = Request(submit, self.arrivals, 1)
        self.arrivals += 1
        self.waiting.append(request)
        self.queue.add(request)
        return request

    def admit(self, request: Request) -> bool:
        """Its pages, or False; what it computes is counted as served and can be hit at once."""
        lease = self.cache.acquire(request.submit.namespace, request.tokens)
        if lease is None:
            return False
        request.lease = lease
        self.waiting.remove(request)
        self.queue.admit(request)
        computed = request.known - lease.num_tokens
        self.queue.served(request.submit.namespace.tenant, computed)
        assert self.cache.append(lease, request.known)
        self.cache.commit(lease, request.tokens, request.known)
        self.running.append(request)
        return True

    def end(self, request: Request) -> None:
        assert request.lease is not None
        self.running.remove(request)
        self.cache.release(request.lease)
        request.lease = None

    def cached(self, request: Request) -> int:
        return self.cache.peek(request.submit.namespace, request.tokens)

    def serve(self, seconds: float = 0.0) -> Request:
        """Admit the head, end it, and let time pass."""
        request = self.queue.head()
        assert request is not None and self.admit(request)
        self.end(request)
        self.now += seconds
        return request
