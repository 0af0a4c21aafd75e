"""The worked examples: what is found, split, shared and evicted, with arithmetic to check by hand.

Page size 2 throughout; tokens are small ints, a page of tokens is written as two digits.
"""

import pytest

from radixserve.cache import POLICIES, Lease, Node, PagePool, PrefixCache, RadixTree, check
from tests.cache.machine import ids


def make(num_pages: int = 10, policy: str = "lru", page_size: int = 2) -> PrefixCache:
    return PrefixCache(PagePool(num_pages), RadixTree(page_size, POLICIES[policy]))


def run(cache: PrefixCache, tokens: list[int], namespace: str = "") -> Lease:
    """A request that computes all its tokens and is still running."""
    data = ids(tokens)
    lease = cache.acquire(namespace, data)
    assert lease is not None
    assert cache.append(lease, len(tokens))
    cache.commit(lease, data, len(tokens))
    check(cache)
    return lease


def serve(cache: PrefixCache, tokens: list[int], namespace: str = "") -> int:
    """The same, ended. Returns the tokens it found cached."""
    found = cache.peek(namespace, ids(tokens))
    cache.release(run(cache, tokens, namespace))
    check(cache)
    return found


def shape(node: Node) -> dict[str, object]:
    """The tree below a node: span -> children."""
    spans = {}
    for child in node.children.values():
        digits = "".join(str(child.tokens[i]) for i in range(0, len(child.tokens), 4))
        spans[digits] = shape(child)
    return spans


def tree(cache: PrefixCache, namespace: str = "") -> dict[str, object]:
    return shape(cache.tree.roots[namespace])


def test_a_prompt_is_cached_up_to_the_last_full_page() -> None:
    cache = make()
    assert serve(cache, [1, 1, 2, 2, 3]) == 0
    assert tree(cache) == {"1122": {}}
    assert (cache.tree.num_pages, len(cache.pool)) == (2, 8)
    assert serve(cache, [1, 1, 2, 2, 3]) == 4
    assert serve(cache, [1, 1, 2, 2]) == 2, "the last token must be computed, so its page too"


def test_a_fork_splits_the_span_at_the_page_border() -> None:
    cache = make()
    serve(cache, [1, 1, 2, 2, 3, 3, 4])
    assert serve(cache, [1, 1, 2, 2, 5, 5, 6]) == 4
    assert tree(cache) == {"1122": {"33": {}, "55": {}}}
    assert cache.tree.num_pages == 4


def test_tokens_that_differ_inside_the_first_page_share_nothing() -> None:
    cache = make()
    serve(cache, [1, 1, 9])
    assert serve(cache, [1, 2, 9]) == 0
    assert tree(cache) == {"11": {}, "12": {}}


def test_a_leaf_grows_while_one_request_decodes() -> None:
    cache = make()
    tokens = [1, 1, 2, 2]
    lease = run(cache, tokens)
    for token in (3, 3, 4, 4):
        tokens.append(token)
        assert cache.append(lease, len(tokens))
        cache.commit(lease, ids(tokens), len(tokens))
    assert tree(cache) == {"11223344": {}}
    cache.release(lease)
    check(cache)


def test_two_requests_that_compute_the_same_both_keep_their_pages() -> None:
    cache = make()
    tokens = ids([1, 1, 2, 2, 3])
    first, second = cache.acquire("", tokens), cache.acquire("", tokens)
    assert first and second
    for lease in (first, second):
        assert cache.append(lease, 5)
        cache.commit(lease, tokens, 5)
        check(cache)
    assert first.pages[:2] != second.pages[:2]
    assert second.duplicates == second.pages[:2]
    assert len(cache.pool) == 4
    cache.release(second)
    assert len(cache.pool) == 7, "the duplicates come back, and the open page"
    cache.release(first)
    check(cache)


def test_a_request_takes_up_what_another_has_committed_meanwhile() -> None:
    cache = make()
    tokens = ids([1, 1, 2, 2, 3])
    follower = cache.acquire("", tokens)
    leader = run(cache, [1, 1, 2, 2, 3])
    assert follower and cache.advance(follower, tokens) == 4
    assert follower.pages == leader.pages[:2]
    check(cache)


def test_least_recently_used_goes_first_and_a_leaf_is_shortened_from_its_end() -> None:
    cache = make(num_pages=6)
    serve(cache, [1, 1, 2, 2, 0])
    serve(cache, [5, 5, 6, 6, 0])
    assert serve(cache, [1, 1, 2, 2, 0]) == 4
    assert len(cache.pool) == 2
    lease = run(cache, [7, 7, 8, 8, 9])
    assert tree(cache) == {"1122": {}, "55": {}, "7788": {}}
    cache.release(lease)


def test_a_trunk_outlives_its_leaves() -> None:
    cache = make(num_pages=5)
    serve(cache, [1, 1, 2, 2, 0])
    serve(cache, [1, 1, 3, 3, 0])
    assert tree(cache) == {"11": {"22": {}, "33": {}}}
    cache.release(run(cache, [9, 9, 9, 9, 9]))
    assert tree(cache) == {"11": {"33": {}}, "9999": {}}
    cache.release(run(cache, [8, 8, 8, 8, 8]))
    assert tree(cache) == {"9999": {}, "8888": {}}, "without leaves, it is as old as the last"
    cache.release(run(cache, [7, 7, 7, 7, 7, 7, 7]))
    assert tree(cache) == {"88": {}, "777777": {}}


def test_held_pages_are_never_evicted() -> None:
    cache = make(num_pages=4)
    lease = run(cache, [1, 1, 2, 2, 3])
    assert cache.available == 1
    assert cache.acquire("", ids([9, 9, 9, 9])) is None
    assert cache.acquire("", ids([1, 1, 2, 2, 4])) is not None, "a hit needs no pages"
    assert not cache.append(lease, 9)
    check(cache)


def test_admission_keeps_headroom() -> None:
    cache = make(num_pages=4)
    assert cache.acquire("", ids([1, 1, 2, 2]), headroom=3) is None
    assert cache.acquire("", ids([1, 1, 2, 2]), headroom=2) is not None


def test_what_a_discarded_lease_computed_leaves_the_tree_with_all_below() -> None:
    cache = make()
    serve(cache, [1, 1, 2, 2, 0])
    cache.discard(run(cache, [1, 1, 3, 3, 4, 4, 0]))
    check(cache)
    assert tree(cache) == {"11": {"22": {}}}
    other = run(cache, [1, 1, 2, 2, 5, 5, 0])
    cache.discard(run(cache, [1, 1, 2, 2, 5, 5, 6, 6]))
    check(cache)
    assert cache.peek("", ids([1, 1, 2, 2, 5, 5, 6, 6, 0])) == 6, "what it had found stays"
    below = run(cache, [1, 1, 2, 2, 5, 5, 7, 7, 8])
    cache.discard(other)
    check(cache)
    assert tree(cache) == {"11": {"22": {}}}, "what stood on it is not found either"
    cache.release(below)
    assert len(cache.pool) == 8


def test_an_empty_namespace_is_forgotten() -> None:
    cache = make(num_pages=2)
    serve(cache, [1, 1, 2], namespace="a")
    assert set(cache.tree.roots) == {"a"}
    cache.release(run(cache, [3, 3, 3, 3], namespace="b"))
    assert set(cache.tree.roots) == {"b"}


def test_a_chain_ten_thousand_deep_is_walked_without_recursion() -> None:
    depth = 10_000
    cache = make(num_pages=2 * depth + 2, page_size=1)
    trunk = [7] * depth
    data = ids(trunk)
    lease = cache.acquire("", data)
    assert lease is not None
    for end in range(1, depth + 1):
        assert cache.append(lease, end)
        cache.commit(lease, data, end)
        reader = cache.acquire("", data[: 4 * end] + ids([1]))  # ends here, so the leaf cannot grow
        assert reader is not None and len(reader.pages) == end
        if end % 100:
            cache.release(reader)
    check(cache)
    assert cache.peek("", data) == depth - 1
    for held in list(cache.leases):
        cache.release(held)
    assert cache.append(cache.acquire("x", b"\0" * 4) or pytest.fail("no lease"), depth + depth)
    check(cache)


@pytest.mark.parametrize(
    ("policy", "gone"), [("lru", "11"), ("fifo", "22"), ("lfu", "11"), ("slru", "11")]
)
def test_what_each_policy_gives_up_first(policy: str, gone: str) -> None:
    cache = make(num_pages=3, policy=policy)
    for tokens in ([2, 2, 0], [1, 1, 0], [2, 2, 0], [2, 2, 0]):
        cache.release(run(cache, tokens))
    lease = cache.acquire("", ids([3, 3]))
    assert lease is not None and cache.append(lease, 4)
    assert gone not in tree(cache)
