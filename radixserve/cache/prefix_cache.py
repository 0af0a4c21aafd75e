"""Who owns each page: the pool (free), the tree (cached), or one lease (being written).

Four functions move pages, and no others: `append` (pool -> lease), `commit` (lease -> tree),
`release` (lease -> pool, and its tail to the tree) and `_take_back` (tree -> pool). The scheduler
is the only caller.
"""

from array import array
from collections.abc import Hashable

from radixserve.cache.accounts import Account
from radixserve.cache.lease import ALL, Lease, Terms
from radixserve.cache.ledger import Departure, Ledger, chain, digest
from radixserve.cache.node import Node
from radixserve.cache.pages import PagePool
from radixserve.cache.pins import Pins
from radixserve.cache.radix import TOKEN_BYTES, RadixTree, Tokens

USUAL = Terms()


class PrefixCache:
    """Pages for requests, and the prefixes they leave behind for others."""

    def __init__(
        self,
        pool: PagePool,
        tree: RadixTree,
        *,
        copy_pages: bool = True,
        pin_budget: float = 0.25,
        ledger_pages: int = 0,
    ) -> None:
        self.pool = pool
        self.tree = tree
        self.page_size = tree.page_size
        self.copy_pages = copy_pages
        self.pins = Pins(tree, pool.num_pages, pin_budget)
        self.ledger = Ledger(ledger_pages)
        tree.ledger = self.ledger if ledger_pages else None
        self.leases: set[Lease] = set()
        self.at_ceiling = False  # whether its tenant's ceiling refused the last `acquire`
        self.evicted_pages = 0
        self.invalidated_pages = 0

    def begin(self, now: float) -> None:
        """A step is going to be ordered."""
        self.tree.step += 1
        self.at(now)

    def at(self, now: float) -> None:
        """It is so late, in seconds. Ends the pins whose time is over."""
        self.tree.now = now
        if self.pins:
            self.pins.expire()

    # ---- how much there is -----------------------------------------------------------------------

    @property
    def available(self) -> int:
        """Pages that are free or can be freed by eviction, bounds of tenants left aside."""
        return len(self.pool) + self.tree.reclaimable

    def available_to(self, account: Account) -> int:
        """Pages that a tenant can have now, above others' floors; its ceiling left aside."""
        free = len(self.pool) + self.tree.reclaimable
        return free - self.tree.accounts.protected_from(account)

    def over_ceiling(self, namespace: Hashable, pages: int) -> bool:
        """Whether so many pages more are not to be had for its tenant, free or not."""
        return pages > self.tree.accounts.slack(self.tree.tenant_of(namespace))

    def num_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def peek(self, namespace: Hashable, tokens: Tokens) -> int:
        """How many tokens stand in whole cached pages; changes nothing."""
        limit = self._limit(len(tokens))
        return self.tree.peek(namespace, bytes(tokens), limit) * self.page_size

    def explain(self, namespace: Hashable, tokens: Tokens) -> tuple[int, int, Departure | None]:
        """What a request with these tokens would find: (cached tokens in whole pages, tokens past
        those that once were cached, how those left). None: they never were, or too long ago."""
        tokens = bytes(tokens)
        limit = self._limit(len(tokens))
        cached, page_bytes = self.tree.peek(namespace, tokens, limit), self.tree.page_bytes
        start = hash(namespace)
        path = chain(start, tokens[: cached * page_bytes], page_bytes)
        rest = tokens[cached * page_bytes : limit * page_bytes]
        pages, why = self.ledger.find(path[-1] if path else start, rest, page_bytes)
        return cached * self.page_size, pages * self.page_size, why

    # ---- the life of a lease ---------------------------------------------------------------------

    def acquire(
        self,
        namespace: Hashable,
        tokens: Tokens,
        headroom: int = 0,
        terms: Terms = USUAL,
        *,
        own_headroom: int = 0,
        most: int = ALL,
    ) -> Lease | None:
        """A lease on the longest cached prefix of `tokens` (int32 bytes), or None.

        At least one token is left to compute, since its logits are wanted, and all behind the first
        `most`. None, and nothing is changed, if the pages for the rest and `headroom` more could
        not be had now, or with `own_headroom` of those would be over the tenant's ceiling.
        """
        fixed, total = bytes(tokens), len(tokens) // TOKEN_BYTES
        limit = self._limit(len(tokens), most)
        node, pages = self.tree.match(namespace, fixed, limit)
        self.tree.hold(node)
        rest, account = self.num_pages(total) - len(pages), node.account
        self.at_ceiling = rest + own_headroom > account.slack
        if self.at_ceiling or rest + headroom > self.available_to(account):
            self._drop(node)
            return None
        if not terms.quiet:
            self.tree.touch(node, hit=bool(pages), priority=terms.priority)
            if self.pins:
                self.pins.refresh(node)
        lease = Lease(namespace, tokens, terms, node, pages, most)
        lease.num_tokens = len(pages) * self.page_size
        self.leases.add(lease)
        if len(pages) < limit and self.tree.ledger is not None:
            self._note_loss(lease, fixed, limit)
        if self.copy_pages:
            self._copy(lease, fixed)
        return lease

    def advance(self, lease: Lease, tokens: Tokens) -> int:
        """Take up what others have committed below a lease that owns no open page.

        Returns how many tokens of `tokens` that is; the lease then covers them.
        """
        if lease.committed < len(lease.pages):
            return 0
        limit = self._limit(len(tokens), lease.most)
        start = lease.committed
        node, pages = self.tree.descend(lease.node, bytes(tokens), start, limit)
        if pages:
            if lease.found == start:
                lease.found += len(pages)
            self._move(lease, node)
            if not lease.terms.quiet:
                self.tree.touch(node, hit=True, priority=lease.terms.priority)
            lease.pages += pages
            lease.committed = len(lease.pages)
            lease.num_tokens = lease.committed * self.page_size
        return len(pages) * self.page_size

    def append(self, lease: Lease, num_tokens: int) -> bool:
        """Pages for `num_tokens` tokens in all. False, and nothing is changed: there are none."""
        assert not lease.released, "a released lease gets no pages"
        short = self.num_pages(num_tokens) - len(lease.pages)
        if short > 0:
            account = lease.node.account
            if short > account.slack:
                return False
            if short > len(self.pool) and short > self.available_to(account):
                return False
            self._evict(short, account)
            lease.pages += self.pool.take(short)
            account.own += short
        lease.num_tokens = max(lease.num_tokens, num_tokens)
        return True

    def commit(self, lease: Lease, tokens: Tokens, num_tokens: int) -> None:
        """Give the full pages of the first `num_tokens` of `tokens`, all written, to the tree."""
        full = min(num_tokens, lease.terms.store) // self.page_size
        if full <= lease.committed or lease.stale:
            return
        start, page_bytes = lease.committed, self.tree.page_bytes
        pages = lease.pages[start:full]
        span = bytes(tokens[start * page_bytes : full * page_bytes])
        account = lease.node.account
        before = account.tree
        node, found, free = self.tree.insert(lease.node, span, pages)
        lease.duplicates += pages[:found]
        lease.committed = full
        account.own -= len(pages) - found
        self._take_back(free)
        assert account.tree == before + len(pages) - found - len(free), "pages changed hands"
        self._move(lease, node)

    def release(self, lease: Lease, num_tokens: int = 0) -> None:
        """End a lease: its own pages become free, what it committed becomes evictable.

        Of its tokens `num_tokens` are written: the last, partly filled page stays in the tree too,
        for who goes on from there.
        """
        if lease.released:
            return
        lease.released = True
        self.leases.remove(lease)
        own = lease.own
        lease.node.account.own -= len(own)
        page_bytes = self.tree.page_bytes
        end = min(num_tokens, lease.terms.store) * TOKEN_BYTES
        start = lease.committed * page_bytes
        if self.copy_pages and start < end < start + page_bytes and not lease.stale:
            tail = bytes(lease.tokens[start:end])
            page = lease.pages[lease.committed]
            own.remove(page)
            own += self.tree.add_tail(lease.node, tail, page)
        self.pool.give(own)
        if not lease.terms.quiet:
            self.tree.touch(lease.node, hit=False, priority=lease.terms.priority)
        self._drop(lease.node)

    def discard(self, lease: Lease) -> None:
        """End a lease whose K/V are not to be used: nobody finds what it computed any more.

        Nor what others computed below that. What it had found in the tree stays.
        """
        if lease.released:
            return
        top = self._computed(lease)
        if top is not None:
            self._invalidate([top])
        self.release(lease)

    # ---- directives ------------------------------------------------------------------------------

    def pin(self, lease: Lease, num_tokens: int, ttl: float) -> tuple[int, str]:
        """Keep the first `num_tokens` of a lease (down to whole pages) for `ttl` seconds.

        They must be committed. Returns (tokens that are pinned, why not or "").
        """
        pages = min(num_tokens // self.page_size, lease.committed)
        if not pages:
            return 0, f"a pin holds whole pages of {self.page_size} tokens that are stored"
        if lease.stale or lease.node.gone:
            return 0, "the prefix was invalidated"
        drop = lease.committed - pages
        if refused := self.pins.refusal(lease.node, drop):
            return 0, refused
        self.pins.add(lease.namespace, self.tree.end_at(lease.node, drop), ttl)
        return pages * self.page_size, ""

    def invalidate(self, namespace: Hashable, prefix: Tokens = b"") -> int:
        """Forget what is cached for prompts of `namespace` that begin with `prefix`.

        Running requests keep what they read; what they still compute there is not stored. Of the
        path to the end of `prefix` goes what no other prompt shares. Returns the tokens.
        """
        prefix = bytes(prefix)
        for lease in self.leases:
            if lease.namespace == namespace:
                own = bytes(lease.tokens[: len(prefix)])
                lease.stale = lease.stale or prefix.startswith(own)
        return self._invalidate(self._tops(namespace, prefix)) * self.page_size

    def clear(self) -> int:
        """Forget all namespaces, as `invalidate` does each. Pins end. Returns the tokens."""
        for lease in self.leases:
            lease.stale = True
        tops = [top for root in self.tree.roots.values() for top in root.children.values()]
        return self._invalidate(tops) * self.page_size

    def bound(self, tenant: str, floor: int, ceiling: int) -> None:
        """Set a tenant's bounds in pages; 0: none."""
        self.tree.accounts.bound(tenant, floor, ceiling)

    # ---- small parts -----------------------------------------------------------------------------

    def _copy(self, lease: Lease, tokens: bytes) -> None:
        """Open the lease's first own page with the tokens that a cached page begins with too."""
        start = lease.committed * self.tree.page_bytes
        most = min(len(tokens) - TOKEN_BYTES, lease.most * TOKEN_BYTES)
        rest = tokens[start : min(start + self.tree.page_bytes, most)]
        child, equal = lease.node.nearest(rest)
        if child is not None and equal:
            lease.source = child.pages[0]
            # Unguarded, it is what a request left that was preempted in this step: nobody fills it.
            lease.source_live = child.stamp >= self.tree.step and child.guards > 0
            done = self.append(lease, lease.num_tokens + equal // TOKEN_BYTES)
            assert done, "the pages for all tokens can be had"

    def _note_loss(self, lease: Lease, tokens: bytes, limit: int) -> None:
        start = lease.committed * self.tree.page_bytes
        rest = tokens[start : limit * self.tree.page_bytes]
        pages, why = self.ledger.find(digest(lease.node), rest, self.tree.page_bytes)
        lease.lost, lease.why_lost = pages * self.page_size, why

    def _tops(self, namespace: Hashable, prefix: bytes) -> list[Node]:
        """The subtrees that hold exactly what begins with `prefix`, without pins."""
        if namespace not in self.tree.roots:
            return []
        limit = len(prefix) // self.tree.page_bytes
        node, pages = self.tree.match(namespace, prefix, limit)
        if len(pages) < limit:
            return []
        rest = prefix[limit * self.tree.page_bytes :]
        tops = [child for key, child in node.children.items() if key.startswith(rest)]
        self.pins.remove_below(tops if rest else [node])
        return _whole_path(node, tops, bool(rest))

    def _invalidate(self, tops: list[Node]) -> int:
        self.pins.remove_below(tops)
        pages = sum(self.tree.invalidate(top) for top in tops)
        self._take_back(self.tree.take_left())
        for lease in self.leases:
            lease.stale = lease.stale or lease.node.gone
        self.invalidated_pages += pages
        return pages

    def _computed(self, lease: Lease) -> Node | None:
        """The top of what a lease has committed and not found, with all below it."""
        if lease.committed == lease.found or lease.node.gone:
            return None
        below = self.tree.end_at(lease.node, lease.committed - lease.found)
        top = lease.node
        while top.parent is not None and top.parent is not below:
            top = top.parent
        return top

    def _evict(self, short: int, account: Account) -> None:
        """Make `short` pages free for a tenant: of its own ones as far as its ceiling asks it."""
        if account.ceiling:
            over = account.total + short - account.ceiling
            if over > 0:
                self._take_evicted(
                    self.tree.evict(over, [(account.evictable, account.reclaimable)])
                )
        missing = short - len(self.pool)
        if missing > 0:
            self._take_evicted(self.tree.evict(missing, self.tree.accounts.sources_for(account)))

    def _take_evicted(self, pages: "array[int]") -> None:
        self.evicted_pages += len(pages)
        self._take_back(pages)

    def _take_back(self, pages: "array[int]") -> None:
        """What was the tree's is free: evicted, gone and read by nobody, or a tail outgrown."""
        self.pool.give(pages)

    def _drop(self, node: Node) -> None:
        self.tree.drop(node)
        if node.gone:
            self._take_back(self.tree.take_left())

    def _move(self, lease: Lease, node: Node) -> None:
        if node is not lease.node:
            self.tree.hold(node)
            self._drop(lease.node)
            lease.node = node

    def _limit(self, num_bytes: int, most: int = ALL) -> int:
        """Whole pages that may be reused: the last token is always computed."""
        return max(min(num_bytes - TOKEN_BYTES, most * TOKEN_BYTES), 0) // self.tree.page_bytes


def _whole_path(node: Node, tops: list[Node], inside: bool) -> list[Node]:
    """Go up from what begins with a prefix to the highest node that nothing else stands on."""
    if not node.pages or (inside and (not tops or node.holds > len(tops))):
        return tops  # a whole namespace, or the prefix ends inside pages of several
    top = node
    while top.parent is not None and top.parent.pages and top.parent.holds == 1:
        top = top.parent
    return [top]
