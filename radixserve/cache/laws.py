"""The laws of the cache, as code: what is true after every call, whoever made it.

Walks everything, so it is for tests and for a request of an operator; never on a hot path.
"""

from collections import Counter

from radixserve.cache.prefix_cache import PrefixCache
from radixserve.cache.radix import Node


class LawBroken(AssertionError):
    """A law does not hold: a bug, never a user's fault."""


def check(cache: PrefixCache) -> None:
    """Raise LawBroken with a sentence if any law does not hold."""
    nodes = list(cache.tree.nodes())
    _ownership(cache, nodes)
    leases = Counter(id(lease.node) for lease in cache.leases)
    known = {id(node) for node in nodes}
    for lease in cache.leases:
        _law(id(lease.node) in known, "a lease's node stands in the tree")
    for node in nodes:
        _shape(cache, node)
        _counts(node, leases[id(node)])
    _evictable(cache, nodes)
    _sizes(cache, nodes)
    _leases(cache)


def _law(holds: bool, sentence: str) -> None:
    if not holds:
        raise LawBroken(sentence)


def _ownership(cache: PrefixCache, nodes: list[Node]) -> None:
    owners = Counter(cache.pool.free)
    for node in nodes:
        owners.update(node.pages)
    for lease in cache.leases:
        owners.update(lease.own)
    _law(
        sorted(owners.elements()) == list(range(cache.pool.num_pages)),
        "every page has exactly one owner: the pool, the tree or one lease",
    )


def _shape(cache: PrefixCache, node: Node) -> None:
    page_bytes = cache.tree.page_bytes
    _law(len(node.tokens) == len(node.pages) * page_bytes, "span and pages agree in length")
    for key, child in node.children.items():
        _law(child.parent is node, "a child knows its parent")
        _law(key == child.tokens[:page_bytes], "a node is filed under its first page's tokens")
    if node.parent is None:
        _law(not node.tokens, "a root has no span")
        _law(cache.tree.roots.get(node.namespace) is node, "a root is filed under its namespace")
    else:
        _law(bool(node.pages), "a node that is no root has a span")


def _counts(node: Node, leases: int) -> None:
    root = node.parent is None
    _law(
        node.holds == leases + len(node.children) + root,
        "holds = leases that end here + children + 1 for a root",
    )
    guarded = sum(1 for child in node.children.values() if child.guards)
    _law(node.guards == leases + guarded, "guards = leases that end here + guarded children")
    _law(not root or node.holds > 1, "an empty root is not kept")


def _evictable(cache: PrefixCache, nodes: list[Node]) -> None:
    free = {id(node) for node in nodes if node.holds == 0}
    filed = {id(node) for node in cache.tree.evictable.values()}
    _law(free == filed, "the evictable set is exactly the nodes without holds")
    for order, node in cache.tree.evictable.items():
        _law(not node.children, "an evictable node is a leaf")
        _law(node.order == order, "an evictable node knows its key")
        _law(
            order == cache.tree.order_of(node), "an evictable node is filed under its policy's key"
        )


def _sizes(cache: PrefixCache, nodes: list[Node]) -> None:
    tree = cache.tree
    _law(tree.num_pages == sum(len(n.pages) for n in nodes), "the tree's pages equal a recount")
    _law(tree.num_nodes == len(nodes) - len(tree.roots), "the tree's nodes equal a recount")
    guarded = sum(len(n.pages) for n in nodes if n.guards)
    _law(tree.guarded == guarded, "the guarded pages equal a recount")


def _leases(cache: PrefixCache) -> None:
    free = set(cache.pool.free)
    for lease in cache.leases:
        pages = lease.pages
        _law(not lease.released, "a live lease is not released")
        _law(free.isdisjoint(pages), "no page of a live lease is free")
        _law(len(set(pages)) == len(pages), "a lease names no page twice")
        _law(
            len(pages) == cache.num_pages(lease.num_tokens),
            "a lease has as many pages as its tokens fill",
        )
        _law(lease.committed <= len(pages), "only pages that a lease has are committed")
        _law(
            set(lease.duplicates) <= set(pages[: lease.committed]), "duplicates are committed pages"
        )
        _path(lease.node, lease.committed)


def _path(node: Node, committed: int) -> None:
    length = 0
    at: Node | None = node
    while at is not None:
        length += len(at.pages)
        at = at.parent
    _law(length == committed, "a lease's node stands for exactly its committed pages")
