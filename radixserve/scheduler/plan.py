"""A step while it is put together, and how much of a request it computes."""

from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Step:
    """A step: while it is put together, and until its result is back."""

    budget: int  # tokens that may still be added
    rows: list[Row] = field(default_factory=list)
    named: list[Request] = field(default_factory=list)  # whose row it is, for each of `rows`
    sampling: list[Request] = field(default_factory=list)  # of those, who gets a token
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
        if count == 1:
            self.decodes += 1
        else:
            self.prefill += count
        self.computed[request.tenant] = self.computed.get(request.tenant, 0) + count
