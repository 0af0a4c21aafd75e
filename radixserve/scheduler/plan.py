"""A step while it is put together, and how much of a request it computes."""

from dataclasses import dataclass, field

from radixserve.cache import Lease
from radixserve.messages import INT32_BYTES, Admit, Row
from radixserve.scheduler.request import Request


def chunk(start: int, to_compute: int, budget: int, page_size: int) -> int:
    """Tokens that a row starting at token `start` computes of `to_compute`, within `budget`.

    A chunk that does not finish ends at a page border, so that its pages can all be shared and
    others' pages can be taken up after it. 0: the budget does not reach the next border.
    """
    if to_compute <= budget:
        return to_compute
    end = (start + budget) // page_size * page_size
    return max(end - start, 0)


def next_row(request: Request, lease: Lease, num_tokens: int) -> Row:
    """The row that computes the request's next tokens, whose pages the lease has."""
    start, end = request.ordered, request.ordered + num_tokens
    tokens = bytes(request.tokens[start * INT32_BYTES : end * INT32_BYTES])
    pages = lease.pages[request.told :].tobytes()
    request.told = len(lease.pages)
    source, lease.source = lease.source, -1
    live = source >= 0 and lease.source_live
    request.compute(num_tokens)
    sample = request.to_compute == 0
    score = request.score(start, num_tokens)
    return Row(request.slot, start, tokens, pages, sample, source, live, score)


@dataclass(slots=True)
class Step:
    """A step: while it is put together, and until its result is back."""

    budget: int  # tokens that may still be added
    rows: list[Row] = field(default_factory=list)
    named: list[Request] = field(default_factory=list)  # whose row it is, for each of `rows`
    sampling: list[Request] = field(default_factory=list)  # of those, who gets a token
    scoring: list[Request] = field(default_factory=list)  # of those, whose prompt is scored
    admits: list[Admit] = field(default_factory=list)
    prefill: int = 0  # tokens of rows with more than one
    decodes: int = 0  # rows of one token
    computed: dict[str, int] = field(default_factory=dict)  # tokens by tenant

    def add(self, request: Request, row: Row) -> None:
        count = len(row.tokens) // INT32_BYTES or 1
        self.budget -= count
        self.rows.append(row)
        self.named.append(request)
        if row.sample:
            self.sampling.append(request)
        if row.score is not None:
            self.scoring.append(request)
        if count == 1:
            self.decodes += 1
        else:
            self.prefill += count
        self.computed[request.tenant] = self.computed.get(request.tenant, 0) + count
