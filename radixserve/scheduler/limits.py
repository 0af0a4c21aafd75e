"""What is taken into the queue, and what is refused with a reason."""

from radixserve.cache import PrefixCache
from radixserve.config import SchedulerConfig
from radixserve.messages import (
    INT32_BYTES,
    CacheDirectives,
    Rejected,
    SetQuota,
    Submit,
    WorkerReady,
)
from radixserve.scheduler.counters import Counters
from radixserve.scheduler.queue import Queue
from radixserve.scheduler.request import first_scored, reusable

MAX_PINS = 16  # of one request
MAX_TTL = 86400.0  # seconds


class Limits:
    """Bounds on one request, on a tenant, and on all that wait."""

    def __init__(
        self, config: SchedulerConfig, worker: WorkerReady, cache: PrefixCache, queue: Queue
    ) -> None:
        self.total = min(worker.context_length, worker.num_pages * worker.page_size)
        self._config = config
        self._cache = cache
        self._queue = queue
        self._quotas: dict[str, SetQuota] = {}

    def set_quota(self, quota: SetQuota) -> None:
        page = self._cache.page_size
        ceiling = max(quota.ceiling // page, 1) if quota.ceiling > 0 else 0
        floor = max(-(-quota.floor // page), 0)
        self._cache.bound(quota.tenant, min(floor, ceiling) if ceiling else floor, ceiling)
        self._quotas[quota.tenant] = quota

    def quota(self, tenant: str) -> SetQuota:
        return self._quotas.get(tenant) or SetQuota(tenant)

    def room(self, tenant: str) -> int:
        """Most tokens, prompt and answer, that a request of the tenant can have."""
        room, bounded = self.total, self._cache.tree.accounts.bounded
        if bounded:
            floors = sum(account.floor for account in bounded if account.tenant != tenant)
            pages = self._cache.pool.num_pages - floors
            ceiling = next((a.ceiling for a in bounded if a.tenant == tenant), 0)
            pages = min(pages, ceiling) if ceiling else pages
            room = min(room, max(pages, 0) * self._cache.page_size)
        return room

    def refusal(self, message: Submit, counters: Counters) -> Rejected | None:
        """Why a request is not taken, or None."""
        length, name = len(message.prompt) // INT32_BYTES, message.request_id
        if length == 0:
            return Rejected(name, "invalid_request", "The prompt has no tokens.")
        if message.max_tokens < 1:
            return Rejected(name, "invalid_request", "No token is asked for.")
        if wrong := _wrong_directives(message.cache):
            return Rejected(name, "invalid_request", wrong)
        if length >= self.total:
            text = f"The prompt has {length} tokens; at most {self.total - 1} fit."
            return Rejected(name, "context_length_exceeded", text)
        return self.over_quota(message, length) or self._queue_full(message, length, counters)

    def over_quota(self, message: Submit, length: int) -> Rejected | None:
        room = self.room(message.namespace.tenant)
        if length < room:
            return None
        most = max(room - 1, 0)
        text = f"The request has {length} tokens; the tenants' quotas leave room for {most}."
        return Rejected(message.request_id, "quota_exceeded", text)

    def _queue_full(self, message: Submit, length: int, counters: Counters) -> Rejected | None:
        waiting, bound = len(self._queue), self._config.max_queued_tokens
        text = ""
        if waiting >= self._config.max_queued_requests:
            text = f"{waiting} requests are waiting; try again later."
        elif bound and waiting:
            most = reusable(first_scored(message.sampling, length), length)
            work = self._queue.work(message.namespace, message.prompt, most)
            if self._queue.tokens + work > bound:
                text = (
                    f"The waiting requests have {self._queue.tokens} tokens to compute and this "
                    f"one {work} more; at most {bound} may wait. Try again later."
                )
        if not text:
            return None
        seconds = max(self._queue.tokens * counters.pace, 1.0)
        return Rejected(message.request_id, "queue_full", text, retry_after=seconds)


def _wrong_directives(directives: CacheDirectives) -> str:
    """What is wrong with what a request asks of the cache, or ""."""
    if directives.store_until < -1:
        return "store_until is a number of tokens, or -1."
    if len(directives.pins) > MAX_PINS:
        return f"A request has at most {MAX_PINS} pins."
    for pin in directives.pins:
        if pin.tokens < 1 or not 0 < pin.ttl <= MAX_TTL:
            return f"A pin holds at least one token, for more than 0 and at most {MAX_TTL:g} s."
    return ""
