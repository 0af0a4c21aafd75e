"""A request's right to its pages, and what it may leave behind."""

from array import array
from collections.abc import Hashable
from dataclasses import dataclass

from radixserve.cache.ledger import Departure
from radixserve.cache.node import Node
from radixserve.cache.pages import no_pages

ALL = 1 << 62  # more tokens than any request has


@dataclass(frozen=True, slots=True)
class Terms:
    """What a request asks of the cache. Tokens past the first `store` are not left to others;
    `quiet` requests do not count as uses; `priority` is for the policy of that name."""

    store: int = ALL
    quiet: bool = False
    priority: int = 0


class Lease:
    """A request's right to its pages.

        a lease's pages, in token order (append-only: what a reader was told stays true)
        |<------- committed ------->|<----- own ----->|
        | the tree's, or duplicates |  being written  |
        |<------------- ceil(num_tokens / page_size) ->|

    `node` stands for the first `committed` pages' tokens and is held by this lease. Where another
    request gave the same tokens to the tree first, this lease's own page stays in `pages` and in
    `duplicates` until release: no reader of the page table is ever surprised.
    """

    __slots__ = (
        "committed",
        "duplicates",
        "found",
        "lost",
        "most",
        "namespace",
        "node",
        "num_tokens",
        "pages",
        "released",
        "source",
        "source_live",
        "stale",
        "terms",
        "tokens",
        "why_lost",
    )

    def __init__(
        self,
        namespace: Hashable,
        tokens: bytes | bytearray,
        terms: Terms,
        node: Node,
        pages: "array[int]",
        most: int = ALL,
    ) -> None:
        self.namespace = namespace
        self.tokens = tokens  # the request's own, which grows
        self.terms = terms
        self.node = node
        self.pages = pages
        self.committed = len(pages)
        self.found = len(pages)  # of those, what it found in the tree before it computed anything
        self.most = most  # tokens that it may find in the tree; it computes all behind them
        self.num_tokens = 0  # whose pages are had
        self.duplicates = no_pages()
        self.source = -1  # page to copy the first page of `own` from, as far as `num_tokens`
        self.lost = 0  # tokens that would have been cached too, had they not left the tree
        self.why_lost: Departure | None = None
        self.source_live = False  # the step being ordered fills that page
        self.stale = False  # its prefix was invalidated: it leaves nothing behind any more
        self.released = False

    @property
    def own(self) -> "array[int]":
        """The pages that this lease owns."""
        return self.duplicates + self.pages[self.committed :]
