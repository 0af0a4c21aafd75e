"""A Hypothesis state machine over the prefix cache: a two-token vocabulary and a tiny pool.

Few words and few pages make trouble come soon: splits, duplicates, evictions and failed admissions
happen in every run. A model writes into each page the prefix that it stands for, so a page that
holds somebody else's K/V is seen at once. All laws are checked after every rule.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from radixserve.cache import POLICIES, Lease, Node, PagePool, PrefixCache, RadixTree, Terms, check
from radixserve.cache.lease import ALL

VOCABULARY = st.integers(0, 1)
PROMPT = st.lists(VOCABULARY, min_size=1, max_size=14)
NAMESPACE = st.sampled_from("ab")
USUAL = st.just(Terms())
TERMS = st.builds(
    Terms,
    store=st.sampled_from([ALL, ALL, ALL, 0, 3]),
    quiet=st.sampled_from([False, False, True]),
    priority=st.integers(0, 1),
)


def ids(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


@dataclass(eq=False)
class Reader:
    """What a scheduler knows of a running request."""

    tokens: bytearray
    lease: Lease
    computed: int
    born: int
    seen: list[int] = field(default_factory=list)  # the page table as a worker was told


class CacheMachine(RuleBasedStateMachine):
    """Rules are what a scheduler may do; tests subclass it with a page size and a policy."""

    page_size = 2
    policy = "lru"
    num_pages = 8
    copy_pages = True
    terms = USUAL

    readers = Bundle("readers")

    @initialize()
    def start(self) -> None:
        tree = RadixTree(self.page_size, POLICIES[self.policy], tenant_of=str)
        self.cache = PrefixCache(
            PagePool(self.num_pages),
            tree,
            copy_pages=self.copy_pages,
            pin_budget=0.5,
            ledger_pages=4,
        )
        self.now = 0.0
        self.live: list[Reader] = []
        self.written: dict[tuple[int, int], bytes] = {}  # (page, offset) -> the prefix it ends
        self.writer: dict[tuple[int, int], int] = {}  # (page, offset) -> who computed it
        self.invalid: list[tuple[str, bytes, int]] = []  # namespace, prefix, born before
        self.births = 0

    # ---- rules -----------------------------------------------------------------------------------

    @rule(
        target=readers,
        prompt=PROMPT,
        namespace=NAMESPACE,
        headroom=st.integers(0, 2),
        choice=st.data(),
        same_step=st.booleans(),
        most=st.sampled_from([ALL, ALL, 0, 3, 6]),
    )
    def acquire(
        self,
        prompt: list[int],
        namespace: str,
        headroom: int,
        choice: st.DataObject,
        same_step: bool,
        most: int,
    ) -> Reader | None:
        if not same_step:
            self.cache.begin(self.now)
        tokens, terms = bytearray(ids(prompt)), choice.draw(self.terms)
        cache, account = self.cache, self.cache.tree.accounts.of(namespace)
        available = cache.available
        cached, lost, why = cache.explain(namespace, tokens)
        assert cached == cache.peek(namespace, tokens) and (lost > 0) == (why is not None)
        with self.floors_hold(namespace):
            lease = cache.acquire(namespace, tokens, headroom, terms, most=most)
        limited = cached > most // self.page_size * self.page_size
        cached = min(cached, most // self.page_size * self.page_size)
        if lease is None:
            assert cache.available == available, "a failed admission changes nothing"
            wanted = cache.num_pages(len(prompt)) + headroom
            most = min(cache.available_to(account), account.slack)
            assert wanted > most - cached
            return None
        assert lease.committed * self.page_size == cached, "peek tells what acquire finds"
        assert cached <= lease.num_tokens < len(prompt), "at least one token is left to compute"
        assert lease.num_tokens <= most, "and all behind what it may reuse"
        if most == ALL or limited:
            assert lease.lost == (0 if limited else lost), "a miss is explained"
        reader = Reader(tokens, lease, lease.num_tokens, self.births)
        self.births += 1
        self.live.append(reader)
        if lease.source >= 0:
            for offset in range(lease.num_tokens % self.page_size):
                place = (lease.pages[-1], offset)
                self.written[place] = self.written[lease.source, offset]
                self.writer[place] = self.writer[lease.source, offset]
        return reader

    @rule(reader=readers, chunk=st.integers(1, 14), commit=st.booleans())
    def compute(self, reader: Reader | None, chunk: int, commit: bool) -> None:
        if reader is None or reader.lease.released:
            return
        self.cache.begin(self.now)
        account = reader.lease.node.account
        end = min(reader.computed + chunk, len(reader.tokens) // 4)
        short = self.cache.num_pages(end) - len(reader.lease.pages)
        had = min(self.cache.available_to(account), account.slack)
        with self.floors_hold(account.tenant):
            appended = self.cache.append(reader.lease, end)
        if not appended:
            assert short > had, "pages are refused only when there are none"
            return
        assert not account.ceiling or account.total <= account.ceiling or short <= 0
        for at in range(reader.computed, end):
            place = (reader.lease.pages[at // self.page_size], at % self.page_size)
            self.written[place] = self.prefix(reader, at)
            self.writer[place] = reader.born
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
            assert reader.computed <= reader.lease.most
        assert reader.computed < len(reader.tokens) // 4 or not gained

    @rule(reader=consumes(readers))
    def discard(self, reader: Reader | None) -> None:
        if reader is None or reader.lease.released:
            return
        self.cache.discard(reader.lease)
        self.cache.discard(reader.lease)
        self.live.remove(reader)
        lease = reader.lease
        if lease.committed > lease.found:
            prompt = bytes(reader.tokens[: 4 * lease.committed * self.page_size]) + ids([0])
            found = self.cache.peek(lease.namespace, prompt)
            assert found <= lease.found * self.page_size, "nobody finds what it computed"

    @rule(reader=consumes(readers), commit=st.booleans())
    def release(self, reader: Reader | None, commit: bool) -> None:
        if reader is None or reader.lease.released:
            return
        if commit:
            self.cache.commit(reader.lease, reader.tokens, reader.computed)
        self.cache.release(reader.lease, reader.computed if commit else 0)
        self.cache.release(reader.lease)
        self.live.remove(reader)

    # ---- invariants ------------------------------------------------------------------------------

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "cache"):
            check(self.cache)

    @invariant()
    def pages_hold_their_own_prefix(self) -> None:
        for reader in getattr(self, "live", []):
            pages = list(reader.lease.pages)
            assert pages[: len(reader.seen)] == reader.seen, "a page table only grows"
            reader.seen = pages
            for at in range(reader.computed):
                place = (pages[at // self.page_size], at % self.page_size)
                assert self.written[place] == self.prefix(reader, at), "a page holds its own prefix"

    @contextmanager
    def floors_hold(self, tenant: str) -> Iterator[None]:
        """What is done for one tenant takes no other one's cached pages below its floor."""
        before = {account: account.tree for account in self.cache.tree.accounts}
        yield
        for account, pages in before.items():
            if account.tenant != tenant:
                assert account.tree >= min(pages, account.floor), "a floor holds"

    def prefix(self, reader: Reader, at: int) -> bytes:
        return f"{reader.lease.namespace}:".encode() + bytes(reader.tokens[: 4 * (at + 1)])

    def teardown(self) -> None:
        for reader in getattr(self, "live", []):
            self.cache.release(reader.lease)
        if hasattr(self, "cache"):
            while self.cache.pins.give_way():
                check(self.cache)
            check(self.cache)
            assert not self.cache.tree.gone, "what is gone ends with its last reader"
            assert self.cache.available == self.num_pages, "when all have left, all is reclaimable"


class DirectiveMachine(CacheMachine):
    """The same with what clients and operators may ask: pins, bounds, invalidation, no-store."""

    num_pages = 7
    terms = TERMS

    @rule(reader=CacheMachine.readers, tokens=st.integers(1, 14), ttl=st.sampled_from([1.0, 10.0]))
    def pin(self, reader: Reader | None, tokens: int, ttl: float) -> None:
        if reader is None or reader.lease.released:
            return
        pins = len(self.cache.pins)
        pinned, refused = self.cache.pin(reader.lease, tokens, ttl)
        assert bool(refused) == (pinned == 0), "a pin is granted, or refused with a reason"
        assert len(self.cache.pins) == pins or pinned > 0

    @rule(seconds=st.sampled_from([0.4, 1.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.cache.begin(self.now)
        assert all(pin.expires > self.now for pin in self.cache.pins)

    @rule()
    def give_way(self) -> None:
        had = len(self.cache.pins)
        assert self.cache.pins.give_way() == (had > 0)

    @rule(tenant=NAMESPACE, floor=st.integers(0, 4), ceiling=st.sampled_from([0, 0, 4, 6]))
    def bound(self, tenant: str, floor: int, ceiling: int) -> None:
        self.cache.bound(tenant, floor, ceiling)

    @rule(namespace=NAMESPACE, prefix=st.lists(VOCABULARY, max_size=9))
    def invalidate(self, namespace: str, prefix: list[int]) -> None:
        start = ids(prefix)
        self.cache.invalidate(namespace, start)
        self.invalid.append((namespace, start, self.births))
        for follow in range(4):
            prompt = start + ids([follow & 1, follow >> 1] * self.page_size)
            assert self.cache.peek(namespace, prompt) < max(len(prefix), 1), "nobody finds it"

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.invalid += [(namespace, b"", self.births) for namespace in "ab"]
        assert not self.cache.pins
        assert not self.cache.tree.num_pages - sum(len(n.pages) for n in self.gone()), "no more"

    def gone(self) -> Iterator[Node]:
        return (node for node in self.cache.tree.nodes() if node.gone)

    @invariant()
    def what_was_invalidated_does_not_come_back(self) -> None:
        for namespace, prefix, born in getattr(self, "invalid", []):
            stack = [(self.cache.tree.roots.get(namespace), b"")]
            while stack:
                node, before = stack.pop()
                if node is None:
                    continue
                path = before + node.tokens
                stack += [(child, path) for child in node.children.values()]
                if not path.startswith(prefix):
                    continue
                for index in range(len(node.tokens) // 4):
                    if len(before) // 4 + index + 1 >= max(len(prefix) // 4, 1):
                        place = (node.pages[index // self.page_size], index % self.page_size)
                        assert self.writer[place] >= born, (
                            "it was computed again by a later request"
                        )
