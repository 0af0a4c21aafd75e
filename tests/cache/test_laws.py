"""The laws hold under every policy and page size; and mistakes planted in the cache are seen."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from radixserve.cache import POLICIES, Ledger, Node, PrefixCache, RadixTree, radix
from radixserve.cache.accounts import Account
from radixserve.cache.eviction import Policy
from radixserve.cache.lease import ALL
from radixserve.cache.pages import no_pages
from tests.cache.machine import CacheMachine, DirectiveMachine

SETTINGS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
)
HUNT = settings(SETTINGS, max_examples=2000, phases=(Phase.generate,))


def machine(base: type[CacheMachine], **fields: Any) -> type[CacheMachine]:
    return type("Machine", (base,), fields)


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("base", [CacheMachine, DirectiveMachine])
def test_laws_hold(base: type[CacheMachine], policy: str, page_size: int) -> None:
    fields = {"policy": policy, "page_size": page_size}
    run_state_machine_as_test(machine(base, **fields), settings=SETTINGS)


def test_laws_hold_without_copies() -> None:
    run_state_machine_as_test(machine(CacheMachine, copy_pages=False), settings=SETTINGS)


# ---- planted mistakes: each replaces one method; the machine must notice -----------------------


def keep_committed_pages(patch: pytest.MonkeyPatch) -> None:
    """Tree and lease both own a page after commit."""
    insert = RadixTree.insert
    patch.setattr(RadixTree, "insert", lambda *a: (insert(*a)[0], len(a[3]), no_pages()))


def leak_duplicates(patch: pytest.MonkeyPatch) -> None:
    """Duplicate pages have no owner."""
    insert = RadixTree.insert
    patch.setattr(RadixTree, "insert", lambda *a: (insert(*a)[0], 0, no_pages()))


def leave_nothing_to_compute(patch: pytest.MonkeyPatch) -> None:
    """A full hit leaves no token to compute."""
    patch.setattr(PrefixCache, "_limit", lambda self, n, most=ALL: n // self.tree.page_bytes)


def forget_the_hold(patch: pytest.MonkeyPatch) -> None:
    """Release forgets the hold."""

    def release(self: PrefixCache, lease: Any, num_tokens: int = 0) -> None:
        if not lease.released:
            lease.released = True
            self.leases.remove(lease)
            self.pool.give(lease.own)

    patch.setattr(PrefixCache, "release", release)


def keep_the_hold_of_a_failure(patch: pytest.MonkeyPatch) -> None:
    """A failed admission keeps its hold."""
    acquire, drop = PrefixCache.acquire, RadixTree.drop

    def failing(self: PrefixCache, *args: Any) -> Any:
        patch.setattr(RadixTree, "drop", lambda *a: None)
        lease = acquire(self, *args)
        patch.setattr(RadixTree, "drop", drop)
        return lease

    patch.setattr(PrefixCache, "acquire", failing)


def evict_the_match(patch: pytest.MonkeyPatch) -> None:
    """Admission evicts the prefix it just matched."""
    match = RadixTree.match

    def evicting(self: RadixTree, *args: Any) -> Any:
        found = match(self, *args)
        if len(self.accounts.common) > 2:
            self.evict(1, [(self.accounts.common, 9)])
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

    def wrong(self: RadixTree, *args: Any) -> Any:
        before = {n.id: n.tokens for n in self.nodes()}
        freed = evict(self, *args)
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

    def wrong(self: RadixTree, *args: Any) -> Any:
        leaf = self.accounts.common.peekitem(0)[1] if self.accounts.common else None
        pages = leaf.pages[:] if leaf else no_pages()
        freed = evict(self, *args)
        if leaf and 0 < len(leaf.pages) < len(pages):
            cut = len(pages) - len(leaf.pages)
            freed[-cut:], leaf.pages = pages[:cut], pages[cut:]
        return freed

    patch.setattr(RadixTree, "evict", wrong)


def lose_count_of_the_size(patch: pytest.MonkeyPatch) -> None:
    """The size counter is not kept."""
    insert = RadixTree.insert

    def wrong(self: RadixTree, *args: Any) -> Any:
        before = self.accounts.pages
        found = insert(self, *args)
        self.accounts.pages = before
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
        radix,
        "equal_pages",
        lambda span, tokens, at, end, page_bytes: min(len(span), end - at) // page_bytes,
    )
    patch.setattr(RadixTree, "descend", _descend_by_keys)


def _descend_by_keys(self: RadixTree, node: Node, tokens: bytes, start: int, limit: int) -> Any:
    pages, at, end = no_pages(), start * self.page_bytes, limit * self.page_bytes
    while at < end and (child := node.children.get(tokens[at : at + self.page_bytes])):
        keep = min(len(child.pages), limit - at // self.page_bytes)
        node = self._split(child, keep) if keep < len(child.pages) else child
        pages += node.pages
        at += keep * self.page_bytes
    return node, pages


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
        lease.pages = lease.pages[::-1] if lease.duplicates else lease.pages

    patch.setattr(PrefixCache, "commit", wrong)


def copy_one_token_too_many(patch: pytest.MonkeyPatch) -> None:
    """A page is copied past the tokens that are equal."""
    nearest = Node.nearest

    def wrong(self: Node, tokens: bytes) -> Any:
        child, shared = nearest(self, tokens)
        return child, min(shared + 4, len(tokens)) if child else 0

    patch.setattr(Node, "nearest", wrong)


def lose_the_tail(patch: pytest.MonkeyPatch) -> None:
    """A tail that the tree does not need has no owner."""
    patch.setattr(RadixTree, "add_tail", lambda *a: no_pages())


def ignore_ceilings(patch: pytest.MonkeyPatch) -> None:
    """A tenant gets more pages than its ceiling."""
    patch.setattr(Account, "slack", property(lambda self: 10**9))


def store_after_invalidation(patch: pytest.MonkeyPatch) -> None:
    """A running request stores what it computed on an invalidated prefix."""
    invalidate = PrefixCache.invalidate

    def wrong(self: PrefixCache, *args: Any) -> Any:
        tokens = invalidate(self, *args)
        for lease in self.leases:
            lease.stale = False
        return tokens

    patch.setattr(PrefixCache, "invalidate", wrong)


def free_what_is_read(patch: pytest.MonkeyPatch) -> None:
    """Invalidation frees pages that running requests read."""
    invalidate = RadixTree.invalidate

    def wrong(self: RadixTree, top: Node) -> Any:
        pages = top.pages[:]
        found = invalidate(self, top)
        if top in self.gone:
            self._left += pages
        return found

    patch.setattr(RadixTree, "invalidate", wrong)


def leak_what_is_gone(patch: pytest.MonkeyPatch) -> None:
    """Invalidated pages have no owner once their last reader has left."""
    patch.setattr(RadixTree, "take_left", lambda self: no_pages())


def remember_everything(patch: pytest.MonkeyPatch) -> None:
    """The ledger has no bound."""
    left = Ledger.left

    def wrong(self: Ledger, *args: Any) -> None:
        capacity, self.capacity = self.capacity, 10**9
        left(self, *args)
        self.capacity = capacity

    patch.setattr(Ledger, "left", wrong)


MISTAKES: list[tuple[type[CacheMachine], Callable[[pytest.MonkeyPatch], None]]] = [
    (CacheMachine, keep_committed_pages),
    (CacheMachine, leak_duplicates),
    (CacheMachine, leave_nothing_to_compute),
    (CacheMachine, forget_the_hold),
    (CacheMachine, keep_the_hold_of_a_failure),
    (CacheMachine, evict_the_match),
    (CacheMachine, split_without_holding),
    (CacheMachine, keep_the_span_when_shortened),
    (CacheMachine, leave_a_held_leaf_evictable),
    (CacheMachine, leave_all_pages_in_the_child),
    (CacheMachine, free_the_wrong_end),
    (CacheMachine, lose_count_of_the_size),
    (CacheMachine, forget_the_guard),
    (CacheMachine, compare_the_first_page_only),
    (CacheMachine, weigh_a_leaf_that_shrinks),
    (CacheMachine, share_across_namespaces),
    (CacheMachine, rewrite_the_page_table),
    (CacheMachine, copy_one_token_too_many),
    (CacheMachine, lose_the_tail),
    (CacheMachine, remember_everything),
    (DirectiveMachine, ignore_ceilings),
    (DirectiveMachine, store_after_invalidation),
    (DirectiveMachine, free_what_is_read),
    (DirectiveMachine, leak_what_is_gone),
]


@pytest.mark.parametrize(("base", "mistake"), MISTAKES, ids=lambda m: m.__name__)
def test_planted_mistakes_are_seen(
    base: type[CacheMachine],
    mistake: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mistake(monkeypatch)
    with pytest.raises(Exception) as caught:
        run_state_machine_as_test(machine(base), settings=HUNT)
    assert isinstance(caught.value, AssertionError | KeyError | IndexError | AttributeError), caught
