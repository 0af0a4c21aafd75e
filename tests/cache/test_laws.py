"""The laws hold under every policy and page size; and mistakes planted in the cache are seen."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from radixserve.cache import POLICIES, PrefixCache, RadixTree
from radixserve.cache.eviction import Policy
from radixserve.cache.radix import Node
from tests.cache.machine import CacheMachine

SETTINGS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
)
HUNT = settings(SETTINGS, max_examples=2000, phases=(Phase.generate,))


def machine(**fields: Any) -> type[CacheMachine]:
    return type("Machine", (CacheMachine,), fields)


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_laws_hold(policy: str, page_size: int) -> None:
    run_state_machine_as_test(machine(policy=policy, page_size=page_size), settings=SETTINGS)


# ---- planted mistakes: each replaces one method; the machine must notice -----------------------


def keep_committed_pages(patch: pytest.MonkeyPatch) -> None:
    """Tree and lease both own a page after commit."""
    insert = RadixTree.insert
    patch.setattr(RadixTree, "insert", lambda *a: (insert(*a)[0], len(a[3])))


def leak_duplicates(patch: pytest.MonkeyPatch) -> None:
    """Duplicate pages have no owner."""
    insert = RadixTree.insert
    patch.setattr(RadixTree, "insert", lambda *a: (insert(*a)[0], 0))


def leave_nothing_to_compute(patch: pytest.MonkeyPatch) -> None:
    """A full hit leaves no token to compute."""
    patch.setattr(PrefixCache, "_limit", lambda self, n: n // self.page_size)


def forget_the_hold(patch: pytest.MonkeyPatch) -> None:
    """Release forgets the hold."""

    def release(self: PrefixCache, lease: Any) -> None:
        if not lease.released:
            lease.released = True
            self.leases.remove(lease)
            self.pool.give(lease.own)

    patch.setattr(PrefixCache, "release", release)


def keep_the_hold_of_a_failure(patch: pytest.MonkeyPatch) -> None:
    """A failed admission keeps its hold."""
    acquire, drop = PrefixCache.acquire, RadixTree.drop

    def failing(self: PrefixCache, *args: Any, **more: Any) -> Any:
        patch.setattr(RadixTree, "drop", lambda *a: None)
        lease = acquire(self, *args, **more)
        patch.setattr(RadixTree, "drop", drop)
        return lease

    patch.setattr(PrefixCache, "acquire", failing)


def evict_the_match(patch: pytest.MonkeyPatch) -> None:
    """Admission evicts the prefix it just matched."""
    match = RadixTree.match

    def evicting(self: RadixTree, *args: Any) -> Any:
        found = match(self, *args)
        if len(self.evictable) > 2:
            self.evict(1)
        return found

    patch.setattr(RadixTree, "match", evicting)


def split_without_holding(patch: pytest.MonkeyPatch) -> None:
    """Split forgets that the child holds its new parent."""
    split = RadixTree._split

    def forgetful(self: RadixTree, *args: Any) -> Node:
        upper = split(self, *args)
        upper.holds = 0
        return upper

    patch.setattr(RadixTree, "_split", forgetful)


def keep_the_span_when_shortened(patch: pytest.MonkeyPatch) -> None:
    """Partial eviction frees pages but keeps the tokens."""
    evict = RadixTree.evict

    def wrong(self: RadixTree, count: int) -> list[int]:
        before = {n.id: n.tokens for n in self.nodes()}
        freed = evict(self, count)
        for node in self.nodes():
            node.tokens = before[node.id]
        return freed

    patch.setattr(RadixTree, "evict", wrong)


def leave_a_held_leaf_evictable(patch: pytest.MonkeyPatch) -> None:
    """A held leaf stays evictable."""

    def hold(self: RadixTree, node: Node) -> None:
        node.holds += 1

    patch.setattr(RadixTree, "_hold", hold)


def leave_all_pages_in_the_child(patch: pytest.MonkeyPatch) -> None:
    """Split leaves all pages in the child."""
    split = RadixTree._split

    def wrong(self: RadixTree, node: Node, keep: int) -> Node:
        pages = list(node.pages)
        upper = split(self, node, keep)
        node.pages = pages
        return upper

    patch.setattr(RadixTree, "_split", wrong)


def free_the_wrong_end(patch: pytest.MonkeyPatch) -> None:
    """Partial eviction frees the first pages of the leaf."""
    evict = RadixTree.evict

    def wrong(self: RadixTree, count: int) -> list[int]:
        leaf = self.evictable.peekitem(0)[1] if self.evictable else None
        pages = list(leaf.pages) if leaf else []
        freed = evict(self, count)
        if leaf and 0 < len(leaf.pages) < len(pages):
            cut = len(pages) - len(leaf.pages)
            freed[-cut:], leaf.pages = pages[:cut], pages[cut:]
        return freed

    patch.setattr(RadixTree, "evict", wrong)


def lose_count_of_the_size(patch: pytest.MonkeyPatch) -> None:
    """The size counter is not kept."""
    insert = RadixTree.insert

    def wrong(self: RadixTree, *args: Any) -> Any:
        before = self.num_pages
        found = insert(self, *args)
        self.num_pages = before
        return found

    patch.setattr(RadixTree, "insert", wrong)


def forget_the_guard(patch: pytest.MonkeyPatch) -> None:
    """A split does not pass the guard on, so pages under a lease count as reclaimable."""
    split = RadixTree._split

    def wrong(self: RadixTree, *args: Any) -> Node:
        upper = split(self, *args)
        upper.guards = 0
        return upper

    patch.setattr(RadixTree, "_split", wrong)


def compare_the_first_page_only(patch: pytest.MonkeyPatch) -> None:
    """A match believes the key and does not compare the rest of the span."""
    patch.setattr(
        RadixTree,
        "_equal_pages",
        lambda self, span, tokens, at, end: min(len(span), end - at) // self.page_bytes,
    )


def weigh_a_leaf_that_shrinks(patch: pytest.MonkeyPatch) -> None:
    """A policy's key changes while its leaf is evictable: the leaf is shortened."""
    patch.setattr(Policy, "key", lambda self, node: len(node.pages))


def share_across_namespaces(patch: pytest.MonkeyPatch) -> None:
    """All namespaces share one root."""
    root = RadixTree._root
    patch.setattr(RadixTree, "_root", lambda self, namespace: root(self, "all"))


def rewrite_the_page_table(patch: pytest.MonkeyPatch) -> None:
    """Commit swaps a lease's page for the tree's, and readers are not told."""
    commit = PrefixCache.commit

    def wrong(self: PrefixCache, lease: Any, *args: Any) -> None:
        commit(self, lease, *args)
        lease.pages[:] = lease.pages[::-1] if lease.duplicates else lease.pages

    patch.setattr(PrefixCache, "commit", wrong)


MISTAKES: list[Callable[[pytest.MonkeyPatch], None]] = [
    keep_committed_pages,
    leak_duplicates,
    leave_nothing_to_compute,
    forget_the_hold,
    keep_the_hold_of_a_failure,
    evict_the_match,
    split_without_holding,
    keep_the_span_when_shortened,
    leave_a_held_leaf_evictable,
    leave_all_pages_in_the_child,
    free_the_wrong_end,
    lose_count_of_the_size,
    forget_the_guard,
    compare_the_first_page_only,
    weigh_a_leaf_that_shrinks,
    share_across_namespaces,
    rewrite_the_page_table,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.__name__)
def test_planted_mistakes_are_seen(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(Exception) as caught:
        run_state_machine_as_test(machine(), settings=HUNT)
    assert isinstance(caught.value, AssertionError | KeyError | IndexError | AttributeError), caught
