"""Pins: prefixes that stay for a time, whatever else wants the room, within a budget."""

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass

from sortedcontainers import SortedDict

from radixserve.cache.accounts import Account
from radixserve.cache.node import Node
from radixserve.cache.radix import RadixTree


@dataclass(slots=True)
class Pin:
    """The path that ends at `node` stays until `expires`; a hit gives it `ttl` seconds again."""

    namespace: Hashable
    node: Node
    ttl: float
    expires: float
    id: int


class Pins:
    """All pins of a tree; at most `budget` of `num_pages` pages, and of a tenant's ceiling."""

    def __init__(self, tree: RadixTree, num_pages: int, budget: float) -> None:
        self.pages = 0  # under pins
        self.broken = 0  # ended before their time, because nothing else could make room
        self._tree = tree
        self.room = int(num_pages * budget)
        self._budget = budget
        self._by_node: dict[Node, Pin] = {}
        self._by_end: SortedDict[tuple[float, int], Pin] = SortedDict()
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._by_node)

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._by_node.values())

    def add(self, namespace: Hashable, node: Node, ttl: float) -> None:
        """Pin `node`, or give the pin that it has more time. `refusal` was asked before."""
        now = self._tree.now
        pin = self._by_node.get(node)
        if pin is not None:
            pin.ttl = max(pin.ttl, ttl)
            self._prolong(pin, now)
            return
        pin = Pin(namespace, node, ttl, now + ttl, self._next_id)
        self._next_id += 1
        self._tree.hold(node)
        self._count(node, 1)
        self._by_node[node] = self._by_end[pin.expires, pin.id] = pin

    def refresh(self, node: Node) -> None:
        """A request hit the path that ends at `node`: the pins on it start their time again."""
        now = self._tree.now
        at: Node | None = node
        while at is not None and at.parent is not None:
            pin = self._by_node.get(at)
            if pin is not None:
                self._prolong(pin, now)
            at = at.parent

    def expire(self) -> None:
        """End the pins whose time is over."""
        while self._by_end and self._by_end.peekitem(0)[0][0] <= self._tree.now:
            self.remove(self._by_end.peekitem(0)[1])

    def give_way(self, account: Account | None = None) -> bool:
        """End the pin (of a tenant) that has least time left, for room. False: there is none."""
        pins = self._by_end.values()
        pin = next((p for p in pins if account is None or p.node.account is account), None)
        if pin is None:
            return False
        self.broken += 1
        self.remove(pin)
        return True

    def remove(self, pin: Pin) -> None:
        del self._by_node[pin.node]
        del self._by_end[pin.expires, pin.id]
        self._count(pin.node, -1)
        self._tree.drop(pin.node)

    def remove_below(self, tops: Collection[Node]) -> None:
        """End the pins on `tops` and on what is below them."""
        chosen = set(tops)
        for pin in [pin for pin in self._by_node.values() if _is_below(pin.node, chosen)]:
            self.remove(pin)

    def _prolong(self, pin: Pin, now: float) -> None:
        del self._by_end[pin.expires, pin.id]
        pin.expires = max(pin.expires, now + pin.ttl)
        self._by_end[pin.expires, pin.id] = pin

    def refusal(self, node: Node, drop: int) -> str:
        """Why the path that ends `drop` pages before `node`'s end cannot be pinned, or ""."""
        more, account = self._unpinned(node, drop), node.account
        if self.pages + more > self.room:
            return (
                f"the pin budget is {self.room} pages, {self.pages} are pinned, "
                f"{more} more are asked"
            )
        if account.ceiling and account.pinned + more > int(account.ceiling * self._budget):
            return (
                f"the tenant's pin budget is {int(account.ceiling * self._budget)} pages, "
                f"{account.pinned} are pinned, {more} more are asked"
            )
        return ""

    def _unpinned(self, node: Node, drop: int) -> int:
        pages = -drop
        at: Node | None = node
        while at is not None and not at.pins:
            pages += len(at.pages)
            at = at.parent
        return max(pages, 0)

    def _count(self, node: Node, change: int) -> None:
        at: Node | None = node
        while at is not None:
            at.pins += change
            if at.pins != (change > 0):
                return
            self.pages += change * len(at.pages)
            at.account.pinned += change * len(at.pages)
            at = at.parent


def _is_below(node: Node, tops: set[Node]) -> bool:
    at: Node | None = node
    while at is not None:
        if at in tops:
            return True
        at = at.parent
    return False
