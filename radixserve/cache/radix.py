"""The radix tree of token spans and the pages that hold their K/V.

How it differs from a textbook radix tree: keys and values have equal length (one page id per
`page_size` tokens), every node border is a page border, and a node is filed under its whole first
page, so two children never share a page-long prefix. Tokens are int32 bytes (memcmp compares a
span of any length in one call) and are always compared, never only hashed. All walks are loops.

The tree owns its pages but not their life: `PrefixCache` moves pages in and out.
"""

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import count

from radixserve.cache.accounts import Accounts, Source
from radixserve.cache.eviction import Policy
from radixserve.cache.ledger import Ledger
from radixserve.cache.node import Node, Order, equal_pages
from radixserve.cache.pages import no_pages

TOKEN_BYTES = 4

Tokens = bytes | bytearray


def one_tenant(namespace: Hashable) -> str:
    """All namespaces are one tenant's."""
    return ""


class RadixTree:
    """Match, insert, split, evict. What it owns is counted in `accounts`."""

    def __init__(
        self,
        page_size: int,
        policy: Callable[[], Policy],
        tenant_of: Callable[[Hashable], str] = one_tenant,
    ) -> None:
        self.page_size = page_size
        self.page_bytes = page_size * TOKEN_BYTES
        self.accounts = Accounts()
        self.roots: dict[Hashable, Node] = {}
        self.gone: set[Node] = set()  # tops of subtrees that cannot be found any more
        self.num_nodes = 0  # without roots
        self.step = 0  # the step that is being ordered
        self.now = 0.0  # seconds
        self.ledger: Ledger | None = None  # told of the pages that leave
        self._policy = policy()
        self.tenant_of = tenant_of
        self._clock = 0
        self._ids = count(1)
        self._left = no_pages()  # of nodes that were gone and lost their last reader

    @property
    def num_pages(self) -> int:
        return self.accounts.pages

    @property
    def reclaimable(self) -> int:
        """Pages that eviction could free now, leaf after leaf."""
        return self.accounts.pages - self.accounts.guarded

    # ---- finding ---------------------------------------------------------------------------------

    def match(self, namespace: Hashable, tokens: bytes, limit: int) -> "tuple[Node, array[int]]":
        """Longest cached prefix of `tokens`, at most `limit` pages: its last node and its pages.

        A node that matches only in part is split, so that the prefix ends where the node ends.
        The node is not held yet and nothing is touched: the caller does both or neither.
        """
        return self.descend(self._root(namespace), tokens, 0, limit)

    def descend(
        self, node: Node, tokens: bytes, start: int, limit: int
    ) -> "tuple[Node, array[int]]":
        """The same below `node`, which stands for the first `start` pages of `tokens`."""
        pages = no_pages()
        page_bytes = self.page_bytes
        at, end = start * page_bytes, limit * page_bytes
        while at < end:
            child = node.children.get(tokens[at : at + page_bytes])
            if child is None:
                break
            span = child.tokens
            size = len(span)
            if at + size > end or not (size == page_bytes or tokens.startswith(span, at)):
                equal = equal_pages(span, tokens, at, end, page_bytes)
                child = self._split(child, equal)
                size = equal * page_bytes
            node = child
            pages += child.pages
            at += size
        return node, pages

    def peek(self, namespace: Hashable, tokens: bytes, limit: int) -> int:
        """How many pages `match` would find; changes nothing."""
        node = self.roots.get(namespace)
        at, end = 0, limit * self.page_bytes
        while node is not None and at < end:
            node = node.children.get(tokens[at : at + self.page_bytes])
            if node is None:
                break
            equal = equal_pages(node.tokens, tokens, at, end, self.page_bytes)
            at += equal * self.page_bytes
            if equal < len(node.pages):
                break
        return at // self.page_bytes

    def nodes(self) -> Iterator[Node]:
        """All nodes, roots included, parents before children."""
        stack = [*self.roots.values(), *self.gone]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    # ---- growing ---------------------------------------------------------------------------------

    def insert(
        self, node: Node, tokens: bytes, pages: "array[int]"
    ) -> "tuple[Node, int, array[int]]":
        """File `tokens` (whole pages) and `pages` below `node`, on which the caller has a hold.

        Returns the node that now stands for them, how many of the first pages were there already
        (those pages stay the caller's, the tree owns the rest), and pages that are free now: tails
        that the new span contains.
        """
        start = node
        node, known = self.descend(node, tokens, 0, len(pages))
        found = len(known)
        if found == len(pages):
            return node, found, no_pages()
        tokens, pages = tokens[found * self.page_bytes :], pages[found:]
        place = (node.id, tokens[: self.page_bytes])
        free = self._drop_tails(node, tokens[: self.page_bytes])
        sole = node.holds == (1 if node is start else 0)
        if node.pages and sole and not node.children:
            node.tokens += tokens  # only the caller stands here: the leaf grows, no chain of leaves
            node.pages += pages
            node.stamp = self.step
            self.accounts.count(node, len(pages))
        else:
            node = self._add(node, tokens, pages)
        self._policy.stored(node, place, len(pages), self._clock)
        if self.ledger is not None:
            self.ledger.added(node, tokens, self.page_bytes)
        return node, found, free

    def add_tail(self, node: Node, tokens: bytes, page: int) -> "array[int]":
        """File a partly filled page below `node`. Returns the pages that are not needed then.

        That is `page` itself where the tree has as much already.
        """
        if node.gone or node.nearest(tokens)[1] == len(tokens):
            return array("i", [page])
        free = self._drop_tails(node, tokens)
        self._add(node, tokens, array("i", [page]))
        return free

    def _add(self, parent: Node, tokens: bytes, pages: "array[int]") -> Node:
        assert not parent.gone, "nothing is added to what was invalidated"
        node = Node(next(self._ids), parent, parent.account, tokens, pages)
        node.created = node.last_used = self.tick()
        node.used_at = self.now
        node.stamp = self.step
        parent.link(node, tokens[: self.page_bytes])
        self._hold(parent)
        self.num_nodes += 1
        self.accounts.count(node, len(pages))
        self._file(node)
        return node

    def _split(self, node: Node, keep: int) -> Node:
        """Give the first `keep` pages of `node` to a new parent. Leases stay at the lower node."""
        parent = node.parent
        assert parent is not None and 0 < keep < len(node.pages), "a split inside the span"
        cut = keep * self.page_bytes
        upper = Node(next(self._ids), parent, node.account, node.tokens[:cut], node.pages[:keep])
        upper.created, upper.last_used, upper.used_at = node.created, node.last_used, node.used_at
        upper.hits, upper.priority, upper.stamp = node.hits, node.priority, node.stamp
        upper.gone, upper.kind = node.gone, node.kind
        upper.digests = node.digests[:keep]
        upper.holds = 1  # its child
        upper.guards = 1 if node.guards else 0
        upper.pins = 1 if node.pins else 0
        if node in self.gone:
            self.gone.remove(node)
            self.gone.add(upper)
        else:
            parent.children[upper.tokens[: self.page_bytes]] = upper
        node.tokens, node.pages = node.tokens[cut:], node.pages[keep:]
        node.digests = node.digests[keep:]
        node.parent = upper
        upper.link(node, node.tokens[: self.page_bytes])
        self.num_nodes += 1
        return upper

    def end_at(self, node: Node, drop: int) -> Node:
        """The node that ends `drop` pages before `node`'s end, made by a split if need be."""
        while drop and drop >= len(node.pages):
            drop -= len(node.pages)
            assert node.parent is not None, "a path has no more pages than its nodes"
            node = node.parent
        return self._split(node, len(node.pages) - drop) if drop else node

    # ---- holding ---------------------------------------------------------------------------------

    def hold(self, node: Node) -> None:
        """Keep `node`, and so its whole path, from eviction."""
        self._hold(node)
        self.accounts.guard(node)

    def drop(self, node: Node) -> None:
        """Undo one `hold`. What was gone and has no reader any more is in `take_left`."""
        self.accounts.unguard(node)
        self._drop(node)

    def touch(self, node: Node, *, hit: bool, priority: int = 0) -> None:
        """Note a use. Only of a held node: its key in the evictable set must not change."""
        assert node.order is None, "an evictable node is touched"
        self._policy.used(node, self._clock, hit=hit)
        node.last_used = self.tick()
        node.used_at = self.now
        node.hits += hit
        node.priority = max(node.priority, priority)

    def tick(self) -> int:
        """The next value of the logical clock: a counter, not the time of day."""
        self._clock += 1
        return self._clock

    def _hold(self, node: Node) -> None:
        node.holds += 1
        if node.order is not None:
            del node.account.evictable[node.order]
            node.order = None

    def _drop(self, node: Node) -> None:
        while True:
            node.holds -= 1
            assert node.holds >= 0, "a hold was dropped twice"
            if not node.pages:
                if node.holds == 1:
                    del self.roots[node.namespace]
                    self.accounts.left(node.account)
                return
            if node.holds:
                return
            if not node.gone:
                self._policy.rested(node)
                return self._file(node)
            self._left += node.pages
            node = self._detach(node)

    def order_of(self, node: Node) -> Order:
        """The key under which `node` stands, or would stand, in the evictable set."""
        return (self._policy.key(node), node.last_used, node.id)

    def _file(self, node: Node) -> None:
        node.order = self.order_of(node)
        node.account.evictable[node.order] = node

    # ---- shrinking -------------------------------------------------------------------------------

    def evict(self, wanted: int, sources: Iterable[Source]) -> "array[int]":
        """Give up at least `wanted` pages, fewer only if the sources have no more.

        Leaves go in the policy's order; the last one is shortened from its end, not thrown away.
        """
        left = [source for source in sources if source[0] and source[1] > 0]
        freed = no_pages()
        while len(freed) < wanted and left:
            node = self._policy.victim([leaves for leaves, _ in left], self._clock)
            at = next(at for at, (s, _) in enumerate(left) if s is node.account.evictable)
            leaves, most = left[at]
            short = min(wanted - len(freed), most, len(node.pages))
            place = node.place(short, self.page_bytes)
            if len(place[1]) == self.page_bytes:  # a tail never comes back as it was
                self._policy.evicted(node, place, short)
            freed += self._shorten(node, short)
            if most > short and leaves:
                left[at] = (leaves, most - short)
            else:
                del left[at]
        return freed

    def invalidate(self, top: Node) -> int:
        """Nobody finds `top` and what is below any more. Returns how many pages that is.

        Pages without a reader are in `take_left` at once, the others when their readers end.
        """
        assert top.parent is not None, "a root stays"
        top.parent.unlink(top.tokens[: self.page_bytes])
        self.gone.add(top)
        stack, leaves, pages = [top], [], 0
        while stack:
            node = stack.pop()
            node.gone = True
            pages += len(node.pages)
            if self.ledger is not None:
                self.ledger.left(node, len(node.pages), self.now, "invalidated")
            stack.extend(node.children.values())
            if node.order is not None:
                leaves.append(node)
        for node in leaves:
            self._left += node.pages
            self._drop(self._detach(node))
        return pages

    def take_left(self) -> "array[int]":
        """Pages that are gone and that nobody reads any more; the caller owns them now."""
        left, self._left = self._left, no_pages()
        return left

    def _shorten(self, node: Node, pages: int) -> "array[int]":
        """Evict the last `pages` pages of a leaf."""
        if self.ledger is not None:
            self.ledger.left(node, pages, self.now, "evicted")
        freed = node.pages[-pages:]
        if pages == len(node.pages):
            self._drop(self._detach(node))
        else:
            del node.pages[-pages:]
            del node.digests[-pages:]
            node.tokens = node.tokens[: -pages * self.page_bytes]
            self.accounts.count(node, -pages)
        return freed

    def _drop_tails(self, node: Node, page: bytes) -> "array[int]":
        """Remove the tails below `node` whose tokens `page` contains; they are of no more use."""
        freed = no_pages()
        while True:
            tail, shared = node.nearest(page)
            if tail is None or shared < len(tail.tokens) or shared == self.page_bytes:
                return freed
            freed += tail.pages
            self._drop(self._detach(tail))

    def _detach(self, node: Node) -> Node:
        """Take a leaf without holds out of the tree. The caller drops its parent, the result."""
        parent = node.parent
        assert parent is not None and not node.holds, "only leaves without holds leave"
        if node.order is not None:
            del node.account.evictable[node.order]
            node.order = None
        if node in self.gone:
            self.gone.remove(node)
        else:
            parent.unlink(node.tokens[: self.page_bytes])
        self.accounts.count(node, -len(node.pages))
        self.num_nodes -= 1
        # A path is used when its end is used: what the parent did not see, it learns here.
        if parent.last_used < node.last_used:
            parent.last_used, parent.used_at = node.last_used, node.used_at
        parent.hits = max(parent.hits, node.hits)
        parent.priority = max(parent.priority, node.priority)
        return parent

    # ---- small parts -----------------------------------------------------------------------------

    def _root(self, namespace: Hashable) -> Node:
        root = self.roots.get(namespace)
        if root is None:
            account = self.accounts.of(self.tenant_of(namespace))
            account.roots += 1
            root = Node(next(self._ids), None, account, b"", no_pages())
            root.namespace = namespace
            root.holds = 1
            self.roots[namespace] = root
        return root
