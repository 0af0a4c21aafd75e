"""Who holds how many pages: one account per tenant, with an optional floor and ceiling."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

if TYPE_CHECKING:
    from radixserve.cache.node import Node, Order

Source = tuple[SortedDict, int]  # such a set, and the most pages that may be taken from it


class Account:
    """What one tenant holds, in pages.

    floor: eviction for others never takes its cached pages below this. ceiling: its pages, cached
    and of running requests, never exceed this; 0 means no bound.
    """

    __slots__ = (
        "ceiling",
        "evictable",
        "floor",
        "guarded",
        "own",
        "pinned",
        "roots",
        "tenant",
        "tree",
    )

    def __init__(self, tenant: str, evictable: "SortedDict[Order, Node]") -> None:
        self.tenant = tenant
        self.tree = 0  # in its nodes
        self.guarded = 0  # of those, under leases and pins
        self.pinned = 0  # of those, under pins
        self.own = 0  # of its leases, not the tree's
        self.roots = 0  # namespaces with something in them
        self.floor = 0
        self.ceiling = 0
        self.evictable = evictable  # where its unheld leaves stand

    @property
    def total(self) -> int:
        return self.tree + self.own

    @property
    def reclaimable(self) -> int:
        """Pages that eviction could take, floor or not."""
        return self.tree - self.guarded

    @property
    def slack(self) -> int:
        """Pages that it can have before it is at its ceiling, its unguarded ones given up."""
        return self.ceiling - self.guarded - self.own if self.ceiling else sys.maxsize

    @property
    def protected(self) -> int:
        """Reclaimable pages that its floor keeps from others."""
        return self.reclaimable - self.takeable

    @property
    def takeable(self) -> int:
        """Pages that eviction may take for others."""
        return min(self.tree - self.guarded, max(self.tree - self.floor, 0))


class Accounts:
    """All tenants. Those without bounds keep their leaves in one common evictable set.

    A tenant with bounds has a set of its own, so that what its floor protects need not be skipped
    and what its ceiling pushes out need not be searched for.
    """

    def __init__(self) -> None:
        self.pages = 0  # of all nodes
        self.guarded = 0  # of guarded nodes
        self.protected = 0  # of all tenants with a floor
        self.common: SortedDict[Order, Node] = SortedDict()
        self.bounded: list[Account] = []
        self._accounts: dict[str, Account] = {}

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def of(self, tenant: str) -> Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(tenant, self.common)
        return account

    def count(self, node: "Node", pages: int) -> None:
        """`pages` were added to `node`, or taken from it if negative."""
        self._change(node.account, pages, pages if node.guards else 0)

    def guard(self, node: "Node") -> None:
        """Somebody stands on `node`: what was free to be evicted of its path no longer is."""
        at: Node | None = node
        pages = 0
        while at is not None:
            at.guards += 1
            if at.guards > 1:
                break
            pages += len(at.pages)
            at = at.parent
        self._change(node.account, 0, pages)

    def unguard(self, node: "Node") -> None:
        """Undo one `guard`."""
        assert node.guards > 0, "a guard was dropped twice"
        at: Node | None = node
        pages = 0
        while at is not None:
            at.guards -= 1
            if at.guards:
                break
            pages += len(at.pages)
            at = at.parent
        self._change(node.account, 0, -pages)

    def bound(self, tenant: str, floor: int, ceiling: int) -> None:
        """Set a tenant's bounds, in pages; 0 and 0 take them away."""
        account = self.of(tenant)
        self.protected -= account.protected
        account.floor, account.ceiling = floor, ceiling
        self.protected += account.protected
        old = account.evictable
        if floor or ceiling:
            if old is self.common:
                account.evictable = SortedDict()
                self.bounded.append(account)
        elif old is not self.common:
            account.evictable = self.common
            self.bounded.remove(account)
        if account.evictable is not old:
            for order in [order for order, node in old.items() if node.account is account]:
                account.evictable[order] = old.pop(order)
        self._forget(account)

    def sources_for(self, account: Account) -> "list[Source]":
        """Where eviction for `account` may take pages: its own, and others' above their floors."""
        sources = [(a.evictable, a.takeable) for a in self.bounded if a is not account]
        if account.evictable is not self.common:
            sources.append((account.evictable, account.reclaimable))
        sources.append((self.common, sys.maxsize))
        return sources

    def protected_from(self, account: Account) -> int:
        """Reclaimable pages that others' floors keep from `account`."""
        return self.protected - account.protected

    def slack(self, tenant: str) -> int:
        """Pages that a tenant can have before it is at its ceiling."""
        account = self._accounts.get(tenant)
        return sys.maxsize if account is None else account.slack

    def left(self, account: Account) -> None:
        """A namespace of the tenant is empty. Without any, and without bounds, it is forgotten."""
        account.roots -= 1
        self._forget(account)

    def _forget(self, account: Account) -> None:
        if not account.roots and account.evictable is self.common:
            del self._accounts[account.tenant]

    def _change(self, account: Account, pages: int, guarded: int) -> None:
        if account.floor:
            self.protected -= account.protected
        self.pages += pages
        self.guarded += guarded
        account.tree += pages
        account.guarded += guarded
        if account.floor:
            self.protected += account.protected
