"""The radix tree of token spans and the pages that hold their K/V.

How it differs from a textbook radix tree: keys and values have equal length (one page id per
`page_size` tokens), every node border is a page border, and a node is filed under its whole first
page, so two children never share a page-long prefix. Tokens are int32 bytes (memcmp compares a
span of any length in one call) and are always compared, never only hashed. All walks are loops.

The tree owns its pages but not their life: `PrefixCache` moves pages in and out.
"""

from collections.abc import Callable, Hashable, Iterator

from sortedcontainers import SortedDict

from radixserve.cache.eviction import Policy

TOKEN_BYTES = 4
NOBODYS = -(2**63)  # below all priorities

Tokens = bytes | bytearray


class Node:
    """One edge: a span of tokens and its pages.

    `holds` = leases that end here + number of children (+1 for a root): a child holds its parent,
    so a request holds one node only, and the nodes without holds are exactly the evictable leaves.
    `guards` = leases that end here + number of guarded children: a node is guarded (no eviction
    can reach it) while guards > 0, which is what the number of reclaimable pages is counted by.
    """

    __slots__ = (
        "children",
        "created",
        "guards",
        "hits",
        "holds",
        "id",
        "kind",
        "last_used",
        "namespace",
        "order",
        "pages",
        "parent",
        "priority",
        "tokens",
    )

    def __init__(
        self, node_id: int, parent: "Node | None", tokens: bytes, pages: list[int]
    ) -> None:
        self.id = node_id
        self.parent = parent
        self.tokens = tokens
        self.pages = pages
        self.children: dict[bytes, Node] = {}
        self.holds = 0
        self.guards = 0
        self.last_used = 0
        self.created = 0
        self.hits = 0
        self.priority = NOBODYS  # the highest of the requests that used it
        self.kind = -1  # the policy's, from the moment nobody stands here to the next use
        self.order: tuple[int, int, int] | None = None  # key in the evictable set
        self.namespace: Hashable = None  # of a root


class RadixTree:
    """Match, insert, split, evict. Counts what it owns in `num_pages`, `num_nodes`, `guarded`."""

    def __init__(self, page_size: int, policy: Callable[[], Policy]) -> None:
        self.page_size = page_size
        self.page_bytes = page_size * TOKEN_BYTES
        self.roots: dict[Hashable, Node] = {}
        self.evictable: SortedDict[tuple[int, int, int], Node] = SortedDict()
        self.num_pages = 0
        self.num_nodes = 0  # without roots
        self.guarded = 0  # pages in guarded nodes
        self._policy = policy()
        self._clock = 0
        self._next_id = 0

    @property
    def reclaimable(self) -> int:
        """Pages that eviction could free now, leaf after leaf."""
        return self.num_pages - self.guarded

    # ---- finding ---------------------------------------------------------------------------------

    def match(self, namespace: Hashable, tokens: Tokens, limit: int) -> tuple[Node, list[int]]:
        """Longest cached prefix of `tokens`, at most `limit` pages: its last node and its pages.

        A node that matches only in part is split, so that the prefix ends where the node ends.
        The node is not held yet and nothing is touched: the caller does both or neither.
        """
        return self.descend(self._root(namespace), tokens, 0, limit)

    def descend(self, node: Node, tokens: Tokens, start: int, limit: int) -> tuple[Node, list[int]]:
        """The same below `node`, which stands for the first `start` pages of `tokens`."""
        pages: list[int] = []
        at, end = start * self.page_bytes, limit * self.page_bytes
        while at < end:
            child = node.children.get(bytes(tokens[at : at + self.page_bytes]))
            if child is None:
                break
            equal = self._equal_pages(child.tokens, tokens, at, end)
            if equal < len(child.pages):
                child = self._split(child, equal)
            node = child
            pages += child.pages
            at += equal * self.page_bytes
        return node, pages

    def peek(self, namespace: Hashable, tokens: Tokens, limit: int) -> int:
        """How many pages `match` would find; changes nothing."""
        node = self.roots.get(namespace)
        at, end = 0, limit * self.page_bytes
        while node is not None and at < end:
            node = node.children.get(bytes(tokens[at : at + self.page_bytes]))
            if node is None:
                break
            equal = self._equal_pages(node.tokens, tokens, at, end)
            at += equal * self.page_bytes
            if equal < len(node.pages):
                break
        return at // self.page_bytes

    def nodes(self) -> Iterator[Node]:
        """All nodes, roots included, parents before children."""
        stack = list(self.roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    # ---- growing ---------------------------------------------------------------------------------

    def insert(self, node: Node, tokens: bytes, pages: list[int]) -> tuple[Node, int]:
        """File `tokens` (whole pages) and `pages` below `node`, on which the caller has a hold.

        Returns the node that now stands for them and how many of the first pages were there
        already: those pages stay the caller's, the tree owns the rest.
        """
        start = node
        node, known = self.descend(node, tokens, 0, len(pages))
        found = len(known)
        if found == len(pages):
            return node, found
        tokens, pages = tokens[found * self.page_bytes :], pages[found:]
        place = (node.id, tokens[: self.page_bytes])
        sole = node.holds == (1 if node is start else 0)
        if node.parent is not None and sole and not node.children:
            node.tokens += tokens  # only the caller stands here: the leaf grows, no chain of leaves
            node.pages += pages
        else:
            node = self._add(node, tokens, pages)
        self._policy.stored(node, place, len(pages), self._clock)
        self.num_pages += len(pages)
        if node.guards:
            self.guarded += len(pages)
        return node, found

    def _add(self, parent: Node, tokens: bytes, pages: list[int]) -> Node:
        node = Node(self._new_id(), parent, tokens, pages)
        node.created = node.last_used = self.tick()
        parent.children[tokens[: self.page_bytes]] = node
        self._hold(parent)
        self.num_nodes += 1
        self._file(node)
        return node

    def _split(self, node: Node, keep: int) -> Node:
        """Give the first `keep` pages of `node` to a new parent. Leases stay at the lower node."""
        assert node.parent is not None and 0 < keep < len(node.pages), "a split inside the span"
        cut = keep * self.page_bytes
        upper = Node(self._new_id(), node.parent, node.tokens[:cut], node.pages[:keep])
        upper.created, upper.last_used, upper.hits = node.created, node.last_used, node.hits
        upper.priority, upper.kind = node.priority, node.kind
        upper.holds = 1  # its child
        upper.guards = 1 if node.guards else 0
        node.parent.children[upper.tokens[: self.page_bytes]] = upper
        node.tokens, node.pages = node.tokens[cut:], node.pages[keep:]
        node.parent = upper
        upper.children[node.tokens[: self.page_bytes]] = node
        self.num_nodes += 1
        return upper

    # ---- holding ---------------------------------------------------------------------------------

    def hold(self, node: Node) -> None:
        """Keep `node`, and so its whole path, from eviction."""
        self._hold(node)
        self._guard(node)

    def drop(self, node: Node) -> None:
        """Undo one `hold`."""
        self._unguard(node)
        self._drop(node)

    def touch(self, node: Node, *, hit: bool, priority: int = 0) -> None:
        """Note a use. Only of a held node: its key in the evictable set must not change."""
        assert node.order is None, "an evictable node is touched"
        self._policy.used(node, self._clock, hit=hit)
        node.last_used = self.tick()
        node.hits += hit
        node.priority = max(node.priority, priority)

    def tick(self) -> int:
        """The next value of the logical clock: a counter, not the time of day."""
        self._clock += 1
        return self._clock

    def _hold(self, node: Node) -> None:
        node.holds += 1
        if node.order is not None:
            del self.evictable[node.order]
            node.order = None

    def _drop(self, node: Node) -> None:
        node.holds -= 1
        assert node.holds >= 0, "a hold was dropped twice"
        if node.parent is None:
            if node.holds == 1:
                del self.roots[node.namespace]
        elif node.holds == 0:
            self._policy.rested(node)
            self._file(node)

    def order_of(self, node: Node) -> tuple[int, int, int]:
        """The key under which `node` stands, or would stand, in the evictable set."""
        return (self._policy.key(node), node.last_used, node.id)

    def _file(self, node: Node) -> None:
        node.order = self.order_of(node)
        self.evictable[node.order] = node

    def _guard(self, node: Node | None) -> None:
        while node is not None:
            node.guards += 1
            if node.guards > 1:
                return
            self.guarded += len(node.pages)
            node = node.parent

    def _unguard(self, node: Node | None) -> None:
        while node is not None:
            node.guards -= 1
            assert node.guards >= 0, "a guard was dropped twice"
            if node.guards:
                return
            self.guarded -= len(node.pages)
            node = node.parent

    # ---- shrinking -------------------------------------------------------------------------------

    def evict(self, count: int) -> list[int]:
        """Give up at least `count` pages if as many are reclaimable; fewer only if they are not.

        Leaves go in the policy's order; the last one is shortened from its end, not thrown away.
        """
        freed: list[int] = []
        while len(freed) < count and self.evictable:
            node = self._policy.victim(self.evictable, self._clock)
            short = min(count - len(freed), len(node.pages))
            if short < len(node.pages):
                first = len(node.tokens) - short * self.page_bytes
                place = (node.id, node.tokens[first : first + self.page_bytes])
                self._policy.evicted(node, place, short)
                freed += node.pages[-short:]
                del node.pages[-short:]
                node.tokens = node.tokens[:first]
                self.num_pages -= short
            else:
                assert node.parent is not None, "roots are never evictable"
                place = (node.parent.id, node.tokens[: self.page_bytes])
                self._policy.evicted(node, place, short)
                freed += node.pages
                self._remove(node)
        return freed

    def prune(self, node: Node) -> list[int]:
        """Remove the path that ends at `node`, up to what is held. Returns its pages."""
        freed: list[int] = []
        while node.parent is not None and node.holds == 0:
            parent = node.parent
            freed += node.pages
            self._remove(node)
            node = parent
        return freed

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None and node.order is not None, "only evictable leaves are removed"
        del self.evictable[node.order]
        node.order = None
        del parent.children[node.tokens[: self.page_bytes]]
        self.num_pages -= len(node.pages)
        self.num_nodes -= 1
        # A path is used when its end is used: what the parent did not see, it learns here.
        parent.last_used = max(parent.last_used, node.last_used)
        parent.hits = max(parent.hits, node.hits)
        parent.priority = max(parent.priority, node.priority)
        self._drop(parent)

    # ---- small parts -----------------------------------------------------------------------------

    def _root(self, namespace: Hashable) -> Node:
        root = self.roots.get(namespace)
        if root is None:
            root = Node(self._new_id(), None, b"", [])
            root.namespace = namespace
            root.holds = 1
            self.roots[namespace] = root
        return root

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _equal_pages(self, span: bytes, tokens: Tokens, at: int, end: int) -> int:
        """How many whole pages of `span` equal `tokens` from byte `at` up to byte `end`."""
        size = min(len(span), end - at)
        if tokens.startswith(span if size == len(span) else span[:size], at):
            return size // self.page_bytes
        low, high = 1, size // self.page_bytes  # the first `low` pages are equal, `high` are not
        while high - low > 1:
            middle = (low + high) // 2
            a, b = low * self.page_bytes, middle * self.page_bytes
            if span[a:b] == tokens[at + a : at + b]:
                low = middle
            else:
                high = middle
        return low
