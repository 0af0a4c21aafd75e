"""The laws of the cache, as code: what is true after every call, whoever made it.

Walks everything, so it is for tests and for a request of an operator; never on a hot path.
"""

from collections import Counter

from radixserve.cache.accounts import Account
from radixserve.cache.node import Node
from radixserve.cache.prefix_cache import PrefixCache


class LawBroken(AssertionError):
    """A law does not hold: a bug, never a user's fault."""


def check(cache: PrefixCache) -> None:
    """Raise LawBroken with a sentence if any law does not hold."""
    nodes = list(cache.tree.nodes())
    _ownership(cache, nodes)
    standing = Counter(id(lease.node) for lease in cache.leases)
    pinned = Counter(id(pin.node) for pin in cache.pins)
    known = {id(node) for node in nodes}
    _law(standing.keys() <= known, "a lease's node stands in the tree")
    _law(pinned.keys() <= known, "a pin's node stands in the tree")
    for node in nodes:
        _shape(cache, node)
        _counts(cache, node, standing[id(node)], pinned[id(node)])
    _evictable(cache, nodes)
    _sizes(cache, nodes)
    for account in cache.tree.accounts:
        _account(cache, account, nodes)
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
    tail = len(node.pages) == 1 and len(node.tokens) < page_bytes
    _law(len(node.tokens) == len(node.pages) * page_bytes or tail, "span and pages agree in length")
    _law(not tail or (node.holds == 0 and len(node.tokens) > 0), "nobody stands on a tail")
    _law(list(node.keys) == sorted(node.children), "the sorted keys are those of the children")
    for key, child in node.children.items():
        _law(child.parent is node, "a child knows its parent")
        _law(key == child.tokens[:page_bytes], "a node is filed under its first page's tokens")
        _law(child.gone == node.gone, "what is gone is gone with all below")
    full = cache.tree.ledger is not None and not tail
    _law(len(node.digests) == full * len(node.pages), "each full page has its digest")
    if node.parent is None:
        _law(not node.tokens, "a root has no span")
        _law(cache.tree.roots.get(node.namespace) is node, "a root is filed under its namespace")
    else:
        _law(bool(node.pages), "a node that is no root has a span")
        _law(node.account is node.parent.account, "a path is one tenant's")
        found = node.parent.children.get(node.tokens[:page_bytes]) is node
        _law(
            found != (node in cache.tree.gone),
            "a node is found unless it is the top of what is gone",
        )


def _counts(cache: PrefixCache, node: Node, leases: int, pins: int) -> None:
    root = node.parent is None
    below = [*node.children.values(), *(top for top in cache.tree.gone if top.parent is node)]
    _law(
        node.holds == leases + pins + len(below) + root,
        "holds = leases and pins that end here + children + 1 for a root",
    )
    guarded = sum(1 for child in below if child.guards)
    _law(node.guards == leases + pins + guarded, "guards = leases and pins + guarded children")
    pinned = sum(1 for child in below if child.pins)
    _law(node.pins == pins + pinned, "pins = pins that end here + pinned children")
    _law(not root or node.holds > 1, "an empty root is not kept")
    _law(not node.gone or node.guards > 0, "what is gone and has no reader has ended")


def _evictable(cache: PrefixCache, nodes: list[Node]) -> None:
    accounts = cache.tree.accounts
    sets = [accounts.common, *(account.evictable for account in accounts.bounded)]
    free = {id(node) for node in nodes if node.holds == 0}
    filed = Counter(id(node) for leaves in sets for node in leaves.values())
    _law(filed == Counter(free), "the evictable sets hold exactly the nodes without holds")
    for leaves in sets:
        for order, node in leaves.items():
            _law(node.account.evictable is leaves, "a leaf stands in its tenant's set")
            _law(not node.children, "an evictable node is a leaf")
            _law(node.order == order, "an evictable node knows its key")
            _law(
                order == cache.tree.order_of(node),
                "an evictable node is filed under its policy's key",
            )


def _sizes(cache: PrefixCache, nodes: list[Node]) -> None:
    tree = cache.tree
    _law(tree.num_pages == sum(len(n.pages) for n in nodes), "the tree's pages equal a recount")
    roots = sum(1 for n in nodes if n.parent is None)
    _law(tree.num_nodes == len(nodes) - roots, "the tree's nodes equal a recount")
    guarded = sum(len(n.pages) for n in nodes if n.guards)
    _law(tree.accounts.guarded == guarded, "the guarded pages equal a recount")
    pinned = sum(len(n.pages) for n in nodes if n.pins)
    _law(cache.pins.pages == pinned, "the pinned pages equal a recount")
    _law(pinned <= cache.pins.room, "pins stay within their budget")
    _law(len(cache.ledger) <= cache.ledger.capacity, "the ledger is bounded")


def _account(cache: PrefixCache, account: Account, nodes: list[Node]) -> None:
    mine = [node for node in nodes if node.account is account]
    own = sum(len(lease.own) for lease in cache.leases if lease.node.account is account)
    _law(account.tree == sum(len(n.pages) for n in mine), "a tenant's cached pages: a recount")
    _law(account.own == own, "a tenant's running pages equal a recount")
    guarded = sum(len(n.pages) for n in mine if n.guards)
    _law(account.guarded == guarded, "a tenant's guarded pages equal a recount")
    pinned = sum(len(n.pages) for n in mine if n.pins)
    _law(account.pinned == pinned, "a tenant's pinned pages equal a recount")


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
