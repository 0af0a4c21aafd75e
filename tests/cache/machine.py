"""A Hypothesis state machine over the prefix cache: a two-token vocabulary and a tiny pool.

Few words and few pages make trouble come soon: splits, duplicates, evictions and failed admissions
happen in every run. A model writes into each page the prefix that it stands for, so a page that
holds somebody else's K/V is seen at once. All laws are checked after every rule.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from radixserve.cache import POLICIES, Lease, PagePool, PrefixCache, RadixTree, check

VOCABULARY = st.integers(0, 1)
PROMPT = st.lists(VOCABULARY, min_size=1, max_size=14)


def ids(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


@dataclass(eq=False)
class Reader:
    """What a scheduler knows of a running request."""

    tokens: bytearray
    lease: Lease
    computed: int
    seen: list[int] = field(default_factory=list)  # the page table as a worker was told


class CacheMachine(RuleBasedStateMachine):
    """Rules are what a scheduler may do; tests subclass it with a page size and a policy."""

    page_size = 2
    policy = "lru"
    num_pages = 8

    readers = Bundle("readers")

    @initialize()
    def start(self) -> None:
        tree = RadixTree(self.page_size, POLICIES[self.policy])
        self.cache = PrefixCache(PagePool(self.num_pages), tree)
        self.live: list[Reader] = []
        self.written: dict[tuple[int, int], bytes] = {}  # (page, offset) -> the prefix it ends

    @rule(
        target=readers,
        prompt=PROMPT,
        namespace=st.sampled_from("ab"),
        headroom=st.integers(0, 2),
        priority=st.integers(-1, 1),
    )
    def acquire(
        self, prompt: list[int], namespace: str, headroom: int, priority: int
    ) -> Reader | None:
        tokens = bytearray(ids(prompt))
        available = self.cache.available
        expected = self.cache.peek(namespace, tokens)
        lease = self.cache.acquire(namespace, tokens, headroom, priority=priority)
        if lease is None:
            assert self.cache.available == available, "a failed admission changes nothing"
            assert self.cache.num_pages(len(prompt)) + headroom > available - expected
            return None
        computed = len(lease.pages) * self.page_size
        assert computed == expected, "peek tells what acquire finds"
        assert computed < len(prompt), "at least one token is left to compute"
        reader = Reader(tokens, lease, computed)
        self.live.append(reader)
        return reader

    @rule(reader=readers, chunk=st.integers(1, 14), commit=st.booleans())
    def compute(self, reader: Reader | None, chunk: int, commit: bool) -> None:
        if reader is None or reader.lease.released:
            return
        end = min(reader.computed + chunk, len(reader.tokens) // 4)
        short = self.cache.num_pages(end) - len(reader.lease.pages)
        had = self.cache.available
        if not self.cache.append(reader.lease, end):
            assert short > had, "pages are refused only when there are none"
            return
        for at in range(reader.computed, end):
            place = (reader.lease.pages[at // self.page_size], at % self.page_size)
            self.written[place] = self.prefix(reader, at)
        reader.computed = end
        if commit:
            self.cache.commit(reader.lease, reader.tokens, reader.computed)

    @rule(reader=readers, token=VOCABULARY)
    def generate(self, reader: Reader | None, token: int) -> None:
        if reader is not None and not reader.lease.released and len(reader.tokens) < 4 * 15:
            reader.tokens += ids([token])

    @rule(reader=readers)
    def advance(self, reader: Reader | None) -> None:
        if reader is None or reader.lease.released:
            return
        gained = self.cache.advance(reader.lease, reader.tokens)
        if gained:
            reader.computed += gained
            assert reader.computed == len(reader.lease.pages) * self.page_size
        assert reader.computed < len(reader.tokens) // 4 or not gained

    @rule(reader=consumes(readers))
    def discard(self, reader: Reader | None) -> None:
        if reader is None or reader.lease.released:
            return
        self.cache.discard(reader.lease)
        self.cache.discard(reader.lease)
        self.live.remove(reader)
        node = reader.lease.node
        while node.parent is not None and node.order is None and not node.holds:
            node = node.parent
        assert node.order is None, "what nobody else holds has left the tree"

    @rule(reader=consumes(readers), commit=st.booleans())
    def release(self, reader: Reader | None, commit: bool) -> None:
        if reader is None or reader.lease.released:
            return
        if commit:
            self.cache.commit(reader.lease, reader.tokens, reader.computed)
        self.cache.release(reader.lease)
        self.cache.release(reader.lease)
        self.live.remove(reader)

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "cache"):
            check(self.cache)

    @invariant()
    def pages_hold_their_own_prefix(self) -> None:
        for reader in getattr(self, "live", []):
            pages = reader.lease.pages
            assert pages[: len(reader.seen)] == reader.seen, "a page table only grows"
            reader.seen = list(pages)
            for at in range(reader.computed):
                place = (pages[at // self.page_size], at % self.page_size)
                assert self.written[place] == self.prefix(reader, at), "a page holds its own prefix"

    def prefix(self, reader: Reader, at: int) -> bytes:
        return f"{reader.lease.namespace}:".encode() + bytes(reader.tokens[: 4 * (at + 1)])

    def teardown(self) -> None:
        for reader in getattr(self, "live", []):
            self.cache.release(reader.lease)
        if hasattr(self, "cache"):
            check(self.cache)
            assert self.cache.available == self.num_pages, "when all have left, all is reclaimable"
