"""A node of the radix tree: one span of tokens, its pages, and who stands on it."""

from array import array
from bisect import bisect_left, insort
from collections.abc import Hashable
from typing import Any

from radixserve.cache.accounts import Account
from radixserve.cache.eviction import Place

Order = tuple[Any, int, int]  # (policy's key, last use, id): the smallest goes first

NOBODYS = -(2**63)  # below all priorities


class Node:
    """One edge of the tree.

    `holds` = leases that end here + pins here + children (+1 for a root): a child holds its parent,
    so a request holds one node only, and the nodes without holds are exactly the evictable leaves.
    `guards` = leases and pins that end here + guarded children: a node is guarded (no eviction can
    reach it) while guards > 0, which is what the number of reclaimable pages is counted by.
    `pins` is the same for pins alone.

    A **tail** is a leaf that owns one partly filled page: what a request left behind past its last
    page border. Nobody can stand on it; its tokens are copied by who goes on from there.
    """

    __slots__ = (
        "account",
        "children",
        "created",
        "digests",
        "gone",
        "guards",
        "hits",
        "holds",
        "id",
        "keys",
        "kind",
        "last_used",
        "namespace",
        "order",
        "pages",
        "parent",
        "pins",
        "priority",
        "stamp",
        "tokens",
        "used_at",
    )

    def __init__(
        self, node_id: int, parent: "Node | None", account: Account, tokens: bytes, pages: Any
    ) -> None:
        self.id = node_id
        self.parent = parent
        self.account = account
        self.tokens = tokens
        self.pages: array[int] = pages
        self.digests: array[int] = array("q")  # of the path up to each page's end; see ledger.py
        self.children: dict[bytes, Node] = {}
        self.keys: list[bytes] = []  # of `children`, sorted: who shares most stands next to whom
        self.holds = 0
        self.guards = 0
        self.pins = 0
        self.last_used = 0  # logical clock
        self.used_at = 0.0  # seconds
        self.created = 0
        self.hits = 0
        self.priority = NOBODYS  # the highest of the requests that used it
        self.kind = -1  # the policy's, from the moment nobody stands here to the next use
        self.stamp = 0  # step that last added pages
        self.gone = False  # invalidated: cannot be found, ends with its last reader
        self.order: Order | None = None  # key in the evictable set
        self.namespace: Hashable = None  # of a root

    def place(self, pages: int, page_bytes: int) -> Place:
        """Where the last `pages` pages of a leaf begin."""
        if pages == len(self.pages):
            assert self.parent is not None, "a root has no pages"
            return self.parent.id, self.tokens[:page_bytes]
        first = len(self.tokens) - pages * page_bytes
        return self.id, self.tokens[first : first + page_bytes]

    def link(self, child: "Node", key: bytes) -> None:
        """File `child` under its first page's tokens (all of a tail's)."""
        self.children[key] = child
        insort(self.keys, key)

    def unlink(self, key: bytes) -> None:
        del self.children[key]
        del self.keys[bisect_left(self.keys, key)]

    def nearest(self, tokens: bytes) -> "tuple[Node | None, int]":
        """The child whose first page shares most with `tokens`, and how many bytes it shares.

        In sorted order it stands beside the place of `tokens`.
        """
        at = bisect_left(self.keys, tokens)
        best, most = None, 0
        for key in self.keys[max(at - 1, 0) : at + 1]:
            shared = common(key, tokens)
            if shared > most:
                best, most = self.children[key], shared
        return best, most


def common(a: bytes, b: bytes) -> int:
    """Length of the longest common prefix of two short byte strings, in bytes of whole tokens."""
    size = min(len(a), len(b))
    differ = int.from_bytes(a[:size], "little") ^ int.from_bytes(b[:size], "little")
    if differ == 0:
        return size
    return ((differ & -differ).bit_length() - 1) // 32 * 4


def equal_pages(span: bytes, tokens: bytes, at: int, end: int, page_bytes: int) -> int:
    """How many whole pages of `span` equal `tokens` from byte `at` up to byte `end`.

    At least one: a node is found by its first page.
    """
    size = min(len(span), end - at)
    if tokens.startswith(span if size == len(span) else span[:size], at):
        return size // page_bytes
    low, high = 1, size // page_bytes  # the first `low` pages are equal, `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        a, b = low * page_bytes, middle * page_bytes
        if span[a:b] == tokens[at + a : at + b]:
            low = middle
        else:
            high = middle
    return low
