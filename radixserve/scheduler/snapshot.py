"""State of scheduler and cache as the message that metrics and health are made from."""

from itertools import islice

from radixserve.cache import PrefixCache
from radixserve.messages import Stats, TenantStats
from radixserve.scheduler.counters import Counters
from radixserve.scheduler.limits import Limits

NAMED = 200  # tenants that are told one by one
OTHER = "other"  # all the rest together, and who has that name, once there is a rest


def snapshot(
    cache: PrefixCache,
    counters: Counters,
    limits: Limits,
    *,
    running: int,
    waiting: int,
    queued_tokens: int,
    waiting_on_step: float,
) -> Stats:
    return Stats(
        running=running,
        waiting=waiting,
        pages_total=cache.pool.num_pages,
        pages_free=len(cache.pool),
        pages_tree=cache.tree.num_pages,
        pages_evictable=cache.tree.reclaimable,
        nodes=cache.tree.num_nodes,
        steps=counters.steps,
        prompt_tokens=counters.prompt_tokens,
        cached_tokens=counters.cached_tokens,
        computed_tokens=counters.computed_tokens,
        generated_tokens=counters.generated_tokens,
        evicted_pages=cache.evicted_pages,
        preemptions=counters.preemptions,
        aborted=counters.aborted,
        finished=counters.finished,
        rejected=counters.rejected,
        step_seconds=counters.step_seconds,
        waiting_on_step=waiting_on_step,
        reachable_tokens=counters.reachable_tokens,
        copied_tokens=counters.copied_tokens,
        queued_tokens=queued_tokens,
        pages_pinned=cache.pins.pages,
        pins_refused=counters.pins_refused,
        invalidated_pages=cache.invalidated_pages,
        tenants=_tenants(cache, counters, limits),
    )


def _tenants(cache: PrefixCache, counters: Counters, limits: Limits) -> dict[str, TenantStats]:
    """The first `NAMED` tenants that anything was computed for, and the others as one.

    Which are named does not change from then on, so nobody's counters shrink.
    """
    accounts = {account.tenant: account for account in cache.tree.accounts}
    stats = {}
    rest = len(counters.tenants) > NAMED
    for tenant, counted in islice(counters.tenants.items(), NAMED):
        if rest and tenant == OTHER:
            continue
        account, quota = accounts.pop(tenant, None), limits.quota(tenant)
        stats[tenant] = TenantStats(
            cached=account.tree * cache.page_size if account else 0,
            running=account.own * cache.page_size if account else 0,
            floor=quota.floor,
            ceiling=quota.ceiling,
            prompt_tokens=counted.prompt_tokens,
            cached_tokens=counted.cached_tokens,
            computed_tokens=counted.computed_tokens,
        )
    if rest:
        named = stats.values()
        stats[OTHER] = TenantStats(
            cached=sum(account.tree for account in accounts.values()) * cache.page_size,
            running=sum(account.own for account in accounts.values()) * cache.page_size,
            floor=0,
            ceiling=0,
            prompt_tokens=counters.prompt_tokens - sum(s.prompt_tokens for s in named),
            cached_tokens=counters.cached_tokens - sum(s.cached_tokens for s in named),
            computed_tokens=counters.computed_tokens - sum(s.computed_tokens for s in named),
        )
    return stats
