"""One request as the scheduler sees it: tokens, pages, and how far the ordered steps have come."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from msgspec.structs import replace

from radixserve.cache import Lease, Terms
from radixserve.cache.lease import ALL
from radixserve.messages import (
    INT32_BYTES,
    CacheDirectives,
    Namespace,
    Pin,
    Sampling,
    Score,
    Submit,
)


def tenant_of(namespace: Hashable) -> str:
    assert isinstance(namespace, Namespace), "the scheduler's namespaces have a tenant"
    return namespace.tenant


def alone(message: Submit) -> Submit:
    """The same request in a namespace of its own, where there is nothing to share."""
    salt = f"{message.namespace.salt}\0{message.request_id}"
    return replace(message, namespace=replace(message.namespace, salt=salt))


def terms_of(directives: CacheDirectives) -> Terms:
    """What a request asks of the cache, in the cache's words."""
    nothing = directives.read_only or directives.store_until == 0
    store = 0 if nothing else directives.store_until if directives.store_until > 0 else ALL
    return Terms(store, directives.read_only, directives.priority)


def first_scored(sampling: Sampling, prompt_len: int) -> int:
    """The first token of a prompt whose log probability is wanted; `prompt_len`: of none.

    The very first token has none: nothing stands before it.
    """
    return max(sampling.logprob_start, 1) if sampling.prompt_logprobs >= 0 else prompt_len


def reusable(scored: int, prompt_len: int) -> int:
    """How many cached tokens a request can stand on of whose prompt `scored` is scored next.

    Cached K/V give no logits, and those of the token before `scored` are wanted.
    """
    return scored - 1 if scored < prompt_len else ALL


@dataclass(eq=False, slots=True)
class Request:
    """State of one request.

        0          cached            ordered      known       known + unseen
        |-- reused --|--- computed ---|-- to come --|- sampled, not yet reported -|

    `ordered`: tokens whose K/V are cached or written by a step that was sent. `known`: token ids
    that the scheduler knows. Steps run in the order they are sent, so what was ordered may be
    counted on by every later step.
    """

    submit: Submit
    arrival: int  # position in the order of arrival
    max_tokens: int  # of the answer, within what the pool can hold
    arrived: float = 0.0  # seconds of the scheduler's clock
    tokens: bytearray = field(init=False)  # int32 ids: prompt, then the answer so far
    prompt_len: int = field(init=False)
    known: int = field(init=False)
    tenant: str = field(init=False)
    terms: Terms = field(init=False)
    pins: list[Pin] = field(init=False)  # not answered yet, shortest first
    lease: Lease | None = None
    slot: int = -1
    told: int = 0  # pages of the lease that the worker has in the slot's table
    ordered: int = 0
    unseen: int = 0  # tokens sampled by steps whose results are not back
    in_flight: int = 0  # steps without a result that name this request's slot
    hits: list[tuple[int, int]] = field(default_factory=list)  # of the prompt, not computed here
    seen: int = 0  # tokens that were reused or computed at any time, before a preemption too
    scored: int = field(init=False)  # tokens of the prompt that need no score from steps to come
    copied: int = 0  # of the reused tokens: copied from a page that is not shared
    reachable: int = 0  # prompt tokens that were cached at admission, or had been and had left
    preempted: bool = False
    done: bool = False  # finished or aborted: runs no more, may still be named by a step
    lost: bool = False  # its K/V are no finite numbers: nobody may reuse them

    def __post_init__(self) -> None:
        self.tokens = bytearray(self.submit.prompt)
        self.known = self.prompt_len = len(self.tokens) // INT32_BYTES
        self.scored = first_scored(self.submit.sampling, self.prompt_len)
        self.tenant = self.submit.namespace.tenant
        self.terms = terms_of(self.submit.cache)
        self.pins = sorted(self.submit.cache.pins, key=lambda pin: pin.tokens)

    @property
    def generated(self) -> int:
        return self.known - self.prompt_len

    @property
    def reused(self) -> int:
        """Prompt tokens that this request did not compute."""
        return sum(end - start for start, end in self.hits)

    @property
    def reusable(self) -> int:
        """How many cached tokens it can stand on."""
        return reusable(self.scored, self.prompt_len)

    @property
    def to_compute(self) -> int:
        """Tokens, known or sampled, whose K/V no step was sent for."""
        return self.known + self.unseen - self.ordered

    @property
    def wants_step(self) -> bool:
        """Whether another token is wanted beyond those already sampled."""
        return not self.done and self.known + self.unseen < self.prompt_len + self.max_tokens

    @property
    def committable(self) -> int:
        """Tokens that are both known and ordered, and so may go into the tree."""
        return min(self.ordered, self.known)

    def append(self, token: bytes) -> None:
        """The answer's next token, as int32 bytes."""
        self.tokens += token
        self.known += 1

    def reuse(self, num_tokens: int) -> None:
        """Go on behind tokens that were found in the tree.

        They count as reused where this request sees them for the first time: what it computed
        itself, and finds again after a preemption, is no hit.
        """
        start, self.ordered = self.ordered, self.ordered + num_tokens
        hit = (max(start, self.seen), min(self.ordered, self.prompt_len))
        if hit[0] < hit[1]:
            self.hits.append(hit)
        self.seen = max(self.seen, self.ordered)

    def compute(self, num_tokens: int) -> None:
        """Go on behind tokens that a step computes; they were no hit, or are none any more."""
        start, self.ordered = self.ordered, self.ordered + num_tokens
        if start < self.seen:  # was preempted, and lost pages that it had hit
            cut = [(a, min(b, start)) for a, b in self.hits]
            cut += [(max(a, self.ordered), b) for a, b in self.hits]
            self.hits = [(a, b) for a, b in cut if a < b]
        self.seen = max(self.seen, self.ordered)

    def score(self, start: int, num_tokens: int) -> Score | None:
        """What a row that computes so many tokens from `start` on is to score.

        Results of steps that are sent come for certain, so nothing is ever scored twice: not after
        a preemption either.
        """
        first, end = self.scored, min(start + num_tokens + 1, self.prompt_len)
        if first >= end:
            return None
        assert start < first, "what is scored is computed"
        self.scored = end
        tokens = bytes(self.tokens[first * INT32_BYTES : end * INT32_BYTES])
        return Score(first - 1 - start, tokens, self.submit.sampling.prompt_logprobs)
