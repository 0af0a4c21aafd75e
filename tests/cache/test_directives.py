"""Pins, bounds of tenants, invalidation, terms of a request, copies and the ledger, by hand."""

import pytest

from radixserve.cache import POLICIES, Lease, PagePool, PrefixCache, RadixTree, Terms, check
from tests.cache.machine import ids


def make(num_pages: int = 10, page_size: int = 2, **more: object) -> PrefixCache:
    tree = RadixTree(page_size, POLICIES["lru"], tenant_of=str)
    return PrefixCache(PagePool(num_pages), tree, **more)  # type: ignore[arg-type]


def run(cache: PrefixCache, tokens: list[int], tenant: str = "", terms: Terms = Terms()) -> Lease:  # noqa: B008 - frozen
    """A request that has computed all its tokens and still runs."""
    data = ids(tokens)
    cache.begin(cache.tree.now)
    lease = cache.acquire(tenant, data, terms=terms)
    assert lease is not None and cache.append(lease, len(tokens))
    cache.commit(lease, data, len(tokens))
    check(cache)
    return lease


def serve(cache: PrefixCache, tokens: list[int], tenant: str = "", terms: Terms = Terms()) -> int:  # noqa: B008 - frozen
    """The same, ended. Returns the tokens that it did not compute."""
    cache.begin(cache.tree.now)
    data = ids(tokens)
    lease = cache.acquire(tenant, data, terms=terms)
    assert lease is not None
    found = lease.num_tokens
    assert cache.append(lease, len(tokens))
    cache.commit(lease, data, len(tokens))
    cache.release(lease, len(tokens))
    check(cache)
    return found


# ---- copies --------------------------------------------------------------------------------------


def test_the_next_turn_copies_the_partly_filled_page() -> None:
    cache = make(page_size=4)
    serve(cache, [1, 2, 3, 4, 5, 6, 7])
    assert cache.tree.num_pages == 2, "a full page and a tail"
    cache.begin(1.0)
    lease = cache.acquire("", ids([1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert lease is not None and (lease.num_tokens, lease.committed) == (7, 1)
    assert lease.source not in lease.pages and not lease.source_live
    assert cache.append(lease, 9)
    cache.commit(lease, ids([1, 2, 3, 4, 5, 6, 7, 8, 9]), 9)
    assert cache.tree.num_pages == 2, "the full page takes the tail's place"
    check(cache)


def test_a_copy_knows_whether_the_step_being_ordered_fills_its_source() -> None:
    cache = make(page_size=4)
    writer = run(cache, [1, 2, 3, 4, 5])
    fork = cache.acquire("", ids([1, 2, 9, 9]))
    assert fork is not None and (fork.source, fork.source_live) == (writer.pages[0], True)
    cache.release(writer, 5)
    after = cache.acquire("", ids([1, 2, 3, 4, 5, 6, 7]))
    assert after is not None and after.source >= 0 and not after.source_live, "nobody fills a tail"
    cache.begin(1.0)
    later = cache.acquire("", ids([1, 2, 9, 9]))
    assert later is not None and later.source >= 0 and not later.source_live


def test_a_fork_inside_a_page_copies_what_it_shares() -> None:
    cache = make(page_size=4)
    serve(cache, [1, 1, 1, 1, 2, 2, 2, 3, 3])
    assert serve(cache, [1, 1, 1, 1, 2, 2, 9, 9, 9]) == 6
    assert serve(cache, [1, 1, 1, 1, 2, 2, 2, 9, 9]) == 7, "the page that shares most"
    assert serve(cache, [1, 1, 1, 1, 2, 2, 2, 3]) == 7, "the last token is always computed"


def test_the_longest_tail_stays_alone() -> None:
    cache = make(page_size=4)
    for end in (1, 2, 3, 2):
        serve(cache, [5, 5, 5, 5, 1, 2, 3][: 4 + end])
    assert (cache.tree.num_pages, cache.tree.num_nodes) == (2, 2)


def test_without_copies_only_whole_pages_are_kept() -> None:
    cache = make(page_size=4, copy_pages=False)
    serve(cache, [1, 2, 3, 4, 5, 6, 7])
    assert cache.tree.num_pages == 1
    assert serve(cache, [1, 2, 3, 4, 5, 6, 7, 8]) == 4


# ---- terms ---------------------------------------------------------------------------------------


def test_no_store_leaves_nothing_and_may_hit() -> None:
    cache = make()
    serve(cache, [1, 1, 2, 2])
    assert serve(cache, [1, 1, 2, 2, 3, 3, 4], terms=Terms(store=0)) == 4
    assert cache.tree.num_pages == 2
    assert serve(cache, [1, 1, 2, 2, 3, 3, 4]) == 4


def test_store_until_a_token_leaves_so_much() -> None:
    cache = make(page_size=2)
    serve(cache, [1, 1, 2, 2, 3, 3, 4, 4], terms=Terms(store=5))
    assert serve(cache, [1, 1, 2, 2, 3, 3, 4, 4]) == 5, "two pages and one token of the third"


def test_a_quiet_request_does_not_count_as_a_use() -> None:
    cache = make(num_pages=6)
    serve(cache, [1, 1, 2, 2])
    serve(cache, [3, 3, 4, 4])
    serve(cache, [1, 1, 2, 2, 9], terms=Terms(store=0, quiet=True))
    serve(cache, [5, 5, 6, 6, 7, 7])
    assert cache.peek("", ids([3, 3, 4, 4, 0])) == 4
    assert cache.peek("", ids([1, 1, 2, 2, 0])) < 4, "used last by nobody who counts"


# ---- pins ----------------------------------------------------------------------------------------


def test_a_pin_outlives_everything_until_its_time_is_over() -> None:
    cache = make(num_pages=8, pin_budget=0.5)
    lease = run(cache, [1, 1, 2, 2])
    assert cache.pin(lease, 4, ttl=10.0) == (4, "")
    cache.release(lease)
    for first in range(3, 9):
        serve(cache, [first] * 11)
        assert cache.peek("", ids([1, 1, 2, 2, 0])) == 4
    cache.begin(10.0)
    assert not cache.pins
    for first in range(3, 9):
        serve(cache, [first] * 15)
    assert cache.peek("", ids([1, 1, 2, 2, 0])) == 0


def test_a_hit_starts_the_time_of_a_pin_again() -> None:
    cache = make(num_pages=8, pin_budget=0.5)
    lease = run(cache, [1, 1, 2, 2])
    cache.pin(lease, 4, ttl=10.0)
    cache.release(lease)
    cache.begin(9.0)
    serve(cache, [1, 1, 2, 2, 3, 3, 4])
    cache.begin(18.0)
    assert [pin.expires for pin in cache.pins] == [19.0]
    cache.begin(19.0)
    assert not cache.pins


def test_a_pin_over_the_budget_is_refused_with_a_reason() -> None:
    cache = make(num_pages=12, pin_budget=0.25)
    lease = run(cache, [1, 1, 2, 2, 3, 3, 4, 4])
    tokens, refused = cache.pin(lease, 8, ttl=10.0)
    assert tokens == 0 and refused == "the pin budget is 3 pages, 0 are pinned, 4 more are asked"
    assert cache.pin(lease, 7, ttl=10.0) == (6, ""), "down to whole pages"
    fork = run(cache, [1, 1, 2, 2, 3, 3])
    assert cache.pin(fork, 4, ttl=1.0) == (4, ""), "what is pinned already costs nothing"
    assert cache.pins.pages == 3
    check(cache)


def test_a_pinned_span_that_splits_stays_pinned_and_counted() -> None:
    cache = make(num_pages=12, pin_budget=0.5)
    lease = run(cache, [1, 1, 2, 2, 3, 3])
    cache.pin(lease, 6, ttl=10.0)
    cache.release(lease)
    serve(cache, [1, 1, 2, 2, 4, 4, 5])
    check(cache)
    assert cache.pins.pages == 3 and cache.tree.num_pages - cache.tree.reclaimable == 3
    assert cache.pins.give_way() and not cache.pins.give_way()
    assert (cache.pins.pages, cache.tree.accounts.guarded) == (0, 0)
    check(cache)


def test_a_tenants_pins_take_their_share_of_its_ceiling_only() -> None:
    cache = make(num_pages=20, pin_budget=0.5)
    cache.bound("a", 0, 4)
    lease = run(cache, [1, 1, 2, 2, 3, 3], "a")
    tokens, refused = cache.pin(lease, 6, ttl=10.0)
    assert tokens == 0 and refused.startswith("the tenant's pin budget is 2 pages")
    assert cache.pin(lease, 4, ttl=10.0) == (4, "")


# ---- bounds of tenants ---------------------------------------------------------------------------


def test_a_floor_keeps_a_quiet_tenant_cached() -> None:
    cache = make(num_pages=8)
    cache.bound("quiet", 2, 0)
    serve(cache, [1, 1, 2, 2, 3, 3, 4, 4], "quiet")
    for first in range(3, 9):
        serve(cache, [first] * 9, "loud")
    assert cache.peek("quiet", ids([1, 1, 2, 2, 0])) == 4
    assert cache.acquire("loud", ids([7] * 14)) is None, "six pages are all that it can get"
    serve(cache, [5] * 14, "quiet")
    assert cache.peek("quiet", ids([1, 1, 2, 2, 0])) < 4, "its own use may take its own pages"


def test_a_ceiling_pushes_out_the_tenants_own_pages_first() -> None:
    cache = make(num_pages=12)
    cache.bound("loud", 0, 4)
    serve(cache, [1, 1, 2, 2, 3, 3], "quiet")
    for first in range(3, 9):
        serve(cache, [first] * 6, "loud")
        assert cache.tree.accounts.of("loud").total <= 4
    assert cache.peek("quiet", ids([1, 1, 2, 2, 3, 3, 0])) == 6
    assert len(cache.pool) > 0, "the pool was never short"
    assert cache.over_ceiling("loud", 5) and not cache.over_ceiling("quiet", 5)
    assert cache.acquire("loud", ids([9] * 10)) is None


def test_bounds_can_change_while_requests_run() -> None:
    cache = make(num_pages=12)
    lease = run(cache, [1] * 8, "a")
    cache.bound("a", 2, 3)
    check(cache)
    assert not cache.append(lease, 9), "above its new ceiling it gets nothing more"
    cache.bound("a", 0, 0)
    check(cache)
    assert cache.append(lease, 9)
    cache.release(lease)
    check(cache)


# ---- invalidation --------------------------------------------------------------------------------


def test_a_namespace_is_forgotten_and_others_are_not() -> None:
    cache = make()
    serve(cache, [1, 1, 2, 2], "a")
    serve(cache, [1, 1, 2, 2], "b")
    assert cache.invalidate("a") == 4
    assert (cache.peek("a", ids([1, 1, 2, 2, 0])), cache.peek("b", ids([1, 1, 2, 2, 0]))) == (0, 4)
    assert len(cache.pool) == 8
    check(cache)


def test_all_namespaces_are_forgotten_and_what_is_read_stays_until_its_reader_ends() -> None:
    cache = make(num_pages=20, pin_budget=0.5)
    serve(cache, [1, 1, 2, 2], "a")
    pinned = run(cache, [5, 5, 6, 6, 7], "b")
    assert cache.pin(pinned, 4, ttl=100.0) == (4, "")
    cache.release(pinned)
    reader = run(cache, [3, 3, 4, 4, 5], "c")
    pages = list(reader.pages)
    assert cache.clear() == 12
    check(cache)
    assert not cache.pins, "a pin keeps nothing from who empties the cache"
    for tenant, prompt in (("a", [1, 1, 2, 2]), ("b", [5, 5, 6, 6]), ("c", [3, 3, 4, 4])):
        assert cache.peek(tenant, ids([*prompt, 0])) == 0
    assert set(pages).isdisjoint(cache.pool.free)
    assert cache.append(reader, 8)
    cache.commit(reader, ids([3, 3, 4, 4, 5, 5, 6, 6]), 8)
    assert cache.peek("c", ids([3, 3, 4, 4, 5, 5, 6, 6, 0])) == 0, "it leaves nothing behind"
    cache.release(reader, 8)
    check(cache)
    assert len(cache.pool) == 20
    assert cache.clear() == 0
    assert serve(cache, [1, 1, 2, 2], "a") == 0 and serve(cache, [1, 1, 2, 2], "a") == 3


@pytest.mark.parametrize("prefix", [[1, 1, 2, 2], [1, 1, 2], [1, 1, 2, 2, 3]])
def test_a_prefix_is_forgotten_and_what_it_shares_is_not(prefix: list[int]) -> None:
    cache = make(num_pages=20)
    serve(cache, [1, 1, 2, 2, 3, 3, 4, 4])
    serve(cache, [1, 1, 5, 5])
    cache.invalidate("", ids(prefix))
    check(cache)
    assert cache.peek("", ids([1, 1, 2, 2, 3, 3, 4, 4, 0])) == 2
    assert cache.peek("", ids([1, 1, 5, 5, 0])) == 4


def test_what_is_read_stays_readable_until_its_reader_ends() -> None:
    cache = make()
    reader = run(cache, [1, 1, 2, 2, 3])
    pages = list(reader.pages)
    cache.invalidate("")
    check(cache)
    assert cache.peek("", ids([1, 1, 2, 2, 3])) == 0
    assert set(pages).isdisjoint(cache.pool.free)
    assert cache.append(reader, 8)
    cache.commit(reader, ids([1, 1, 2, 2, 3, 3, 4, 4]), 8)
    assert cache.peek("", ids([1, 1, 2, 2, 3, 3, 4, 4, 0])) == 0, "it leaves nothing behind"
    cache.release(reader, 8)
    check(cache)
    assert len(cache.pool) == 10


def test_pins_end_with_what_they_pin() -> None:
    cache = make(pin_budget=0.5)
    lease = run(cache, [1, 1, 2, 2, 3])
    cache.pin(lease, 4, ttl=100.0)
    cache.release(lease)
    cache.invalidate("", ids([1, 1]))
    check(cache)
    assert not cache.pins and len(cache.pool) == 10


# ---- the ledger ----------------------------------------------------------------------------------


def test_a_miss_is_explained_by_what_left_and_when() -> None:
    cache = make(num_pages=6, ledger_pages=100)
    cache.begin(100.0)
    serve(cache, [1, 1, 2, 2, 3, 3])
    cache.begin(410.0)
    serve(cache, [4] * 12)
    cached, lost, why = cache.explain("", ids([1, 1, 2, 2, 3, 3, 0]))
    assert (cached, lost) == (0, 6) and why is not None
    assert (why.reason, why.at, why.idle) == ("evicted", 410.0, 310.0)
    assert cache.explain("", ids([9, 9, 9])) == (0, 0, None), "it was never here"
    serve(cache, [1, 1, 2, 2, 3, 3])
    assert cache.explain("", ids([1, 1, 2, 2, 3, 3, 0])) == (6, 0, None), "it came back"


def test_the_ledger_knows_what_was_invalidated_and_forgets_the_oldest() -> None:
    cache = make(ledger_pages=2)
    serve(cache, [1, 1, 2, 2, 3, 3, 4, 4])
    cache.invalidate("")
    assert len(cache.ledger) == 2
    cache = make(ledger_pages=9)
    serve(cache, [1, 1, 2, 2, 3, 3])
    cache.invalidate("", ids([1, 1]))
    cached, lost, why = cache.explain("", ids([1, 1, 2, 2, 3, 3, 0]))
    assert (cached, lost) == (0, 6) and why is not None and why.reason == "invalidated"


def test_a_long_chain_that_is_gone_ends_without_recursion() -> None:
    cache = make(num_pages=5000, page_size=1)
    path: list[int] = []
    for _ in range(2000):
        data = ids([*path, 1])
        lease = cache.acquire("", data)
        assert lease is not None and cache.append(lease, len(path) + 1)
        cache.commit(lease, data, len(path) + 1)
        cache.release(lease)
        path.append(2)
    assert cache.tree.num_nodes > 2000
    reader = run(cache, path)
    cache.invalidate("")
    cache.release(reader)
    assert len(cache.pool) == 5000
    check(cache)
