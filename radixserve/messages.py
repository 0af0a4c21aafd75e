"""Everything the processes say to each other: frozen, tagged msgspec structs, one union per inbox.

A message states a fact or gives an order; none asks a question, so no process ever waits for an
answer about another's state. The ring is `Submit -> RunStep -> StepDone -> Tokens`; the only
message against the stream is `Abort`. On the wire there is always a list of messages.

Token ids and page ids travel as the bytes of little-endian int32 (`pack`, `unpack`): a list of
8,192 Python ints costs about 1 ms to decode, the bytes 50 us. New fields go last, with a default.
"""

from array import array
from collections.abc import Iterable

from msgspec import Struct

INT32_BYTES = 4


def pack(ids: Iterable[int]) -> bytes:
    """Integers as the bytes of int32, the form in which ids travel and are kept in the tree."""
    return array("i", ids).tobytes()


def unpack(data: bytes | bytearray) -> list[int]:
    """The integers in bytes that `pack` made."""
    return array("i", bytes(data)).tolist()


class Namespace(Struct, frozen=True, array_like=True):
    """Typed key ahead of the first token. Requests share K/V only if all of it is equal.

    Structured, never a joined string: a salt "x" and a tenant "x" are different namespaces.
    """

    adapter: str = ""
    generation: int = 0
    tenant: str = ""
    salt: str = ""


class Sampling(Struct, frozen=True, array_like=True):
    """How one request's next tokens are chosen.

    The random number of a token is a function of (`seed`, position of the token), so a seeded
    request gives the same tokens whatever its batch and however often it was preempted.
    """

    seed: int  # 64 bits; the tokenizer draws one where the client gave none
    temperature: float = 1.0  # 0 = greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0  # over generated tokens
    frequency_penalty: float = 0.0  # over generated tokens
    repetition_penalty: float = 1.0  # over prompt and generated tokens
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int = -1  # -1: none wanted; 0: of the chosen token only; n: and of the n best
    min_tokens: int = 0  # stop ids are masked until this many tokens are generated
    stop_ids: tuple[int, ...] = ()  # the ids that end the answer, masked while below `min_tokens`
    grammar: str = ""  # what the answer must fit, in llguidance's form; "": anything
    prompt_logprobs: int = -1  # of the prompt's tokens, as `top_logprobs`; -1: none wanted
    logprob_start: int = 0  # the first token of the prompt that these are wanted of
    allowed_ids: bytes = b""  # int32 ids, of which the answer's tokens are; empty: all ids

    @property
    def needs_history(self) -> bool:
        """Whether the sampler must know the tokens so far, not only the logits."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


class TokenLogprobs(Struct, frozen=True, array_like=True):
    """Natural-log probabilities at one token, before temperature, bias and truncation."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first
    rank: int = 0  # how many tokens are at least as probable, itself included; 0: not counted


class Score(Struct, frozen=True, array_like=True):
    """Tokens of a prompt whose log probabilities a row is to tell: they follow the row's own.

    The first of `tokens` stands behind the row's token number `at`; so the last may stand behind
    the row.
    """

    at: int
    tokens: bytes  # int32, at least one
    best: int = 0  # so many of the best tokens at each place are told too


class Scores(Struct, frozen=True, array_like=True):
    """What a `Score` gave: the `TokenLogprobs` of thousands of tokens, packed (native order)."""

    logprobs: bytes  # float32, one for each token
    ranks: bytes  # int32
    best_ids: bytes = b""  # int32, `best` for each token
    best_logprobs: bytes = b""  # float32, of those

    def unpack(self) -> list[TokenLogprobs]:
        """One for each token, in order."""
        logprobs, values = array("f", self.logprobs), array("f", self.best_logprobs)
        best = list(zip(unpack(self.best_ids), values, strict=True))
        most = len(values) // max(len(logprobs), 1)
        return [
            TokenLogprobs(logprob, tuple(best[i * most : (i + 1) * most]), rank)
            for i, (logprob, rank) in enumerate(zip(logprobs, unpack(self.ranks), strict=True))
        ]


class Pin(Struct, frozen=True, array_like=True):
    """Keep the first `tokens` of a prompt for `ttl` seconds, whatever else wants the room.

    Every request that hits the pinned prefix starts its time again.
    """

    tokens: int
    ttl: float


class CacheDirectives(Struct, frozen=True, array_like=True):
    """What a request asks of the prefix cache beyond the rules that hold for all."""

    store_until: int = -1  # tokens it may leave behind for others; -1: all, 0: none (no-store)
    read_only: bool = False  # leaves nothing behind, and its hits do not count as uses
    priority: int = 0  # eviction policy `priority`: what it used goes after all of lower priority
    pins: tuple[Pin, ...] = ()  # answered by one `Pinned` each


# ---- to the scheduler ----------------------------------------------------------------------------


class Submit(Struct, frozen=True, tag=True):
    """Compute an answer. Validated at the front: ids in the vocabulary, prompt within the limit."""

    request_id: str
    origin: int  # which tokenizer process gets the `Tokens`
    prompt: bytes  # int32 token ids, at least one
    sampling: Sampling
    max_tokens: int
    namespace: Namespace = Namespace()
    priority: int = 0
    cache: CacheDirectives = CacheDirectives()


class Abort(Struct, frozen=True, tag=True):
    """Nobody waits for this request any more. Unknown or finished ids are ignored."""

    request_id: str


class Invalidate(Struct, frozen=True, tag=True):
    """Forget what is cached for prompts of a namespace that begin with `prefix`.

    No later request hits it; running requests keep what they read until they end. Of the prefix's
    own path goes what no other prompt shares. Answered by `Invalidated`.
    """

    request_id: str
    origin: int
    namespace: Namespace | None  # None: all of them, whole
    prefix: bytes = b""  # int32 token ids; empty: the whole namespace


class SetQuota(Struct, frozen=True, tag=True):
    """Bounds on the K/V tokens of a tenant, cached and running. Replaces its earlier bounds."""

    tenant: str
    floor: int = 0  # eviction for others never takes its cached tokens below this
    ceiling: int = 0  # its tokens never exceed this; 0: no bound


class WorkerReady(Struct, frozen=True, tag=True):
    """The worker holds a model and a K/V pool. Limits are what it can hold, in tokens and rows."""

    num_pages: int
    page_size: int
    max_rows: int  # slots: requests that can run at once
    step_tokens: int  # most tokens in one step
    context_length: int
    vocab_size: int
    fingerprint: str  # of the weights and the config; part of what makes K/V comparable
    startup: dict[str, float] = {}  # seconds per part


class StepDone(Struct, frozen=True, tag=True):
    """The result of one `RunStep`: one token per row that asked for one, in row order.

    A token of -1: the model gave no finite numbers for that row; of -2: its grammar allows none.
    Its request cannot go on.
    """

    step: int
    tokens: bytes  # int32
    logprobs: tuple[TokenLogprobs | None, ...] = ()  # per token; empty when no row asked
    seconds: float = 0.0
    scores: tuple[Scores | None, ...] = ()  # per row with a `Score`; None: no finite numbers


# ---- to the worker -------------------------------------------------------------------------------


class Admit(Struct, frozen=True, array_like=True):
    """Slot `slot` now stands for a new request with an empty page table."""

    slot: int
    sampling: Sampling
    history: bytes = b""  # tokens so far, only if the sampling depends on them
    prompt_len: int = 0  # how much of `history` is prompt; also counts `min_tokens`


class Row(Struct, frozen=True, array_like=True):
    """One request's part of one step: compute K/V for tokens [start, start + n).

    Prefill, chunked prefill and decode are the same row. Empty `tokens` means one token: the one
    this slot sampled last (it may not have reached the scheduler yet).
    """

    slot: int
    start: int
    tokens: bytes  # int32
    pages: bytes = b""  # int32 page ids appended to the slot's page table, before the step
    sample: bool = True  # whether the token after the last one is wanted
    # Page whose first `start % page_size` tokens are this row's too: their K/V are copied, in all
    # layers, to the row's page that holds `start`. Copies of a step run in row order, before any
    # row writes. -1: nothing to copy.
    copy_from: int = -1
    # An earlier row of this step fills that page: what it writes there is copied as it is written.
    copy_live: bool = False
    score: Score | None = None


class RunStep(Struct, frozen=True, tag=True):
    """One forward pass. Steps are run in the order in which they arrive.

    In each layer the K/V of all rows are written before any row attends, so a row may stand on
    pages that another row of the same step fills.
    """

    step: int
    rows: tuple[Row, ...]
    admits: tuple[Admit, ...] = ()  # applied before the rows
    frees: tuple[int, ...] = ()  # slots without a request any more, applied before the admits


# ---- to the tokenizer ----------------------------------------------------------------------------


class Ready(Struct, frozen=True, tag=True):
    """The engine takes requests. A prompt must leave room for at least one token of answer."""

    context_length: int
    max_total_tokens: int  # prompt + answer of one request: min(context, pool)
    vocab_size: int
    page_size: int
    num_pages: int
    fingerprint: str


class Tokens(Struct, frozen=True, tag=True):
    """Newly sampled tokens of one request; the last message has a finish reason.

    Or `scores`, without tokens: of the prompt's next tokens that are to be scored. All of them come
    before the first sampled token.
    """

    request_id: str
    tokens: bytes  # int32
    cached_tokens: int  # prompt tokens that this request did not compute
    finish: str = ""  # "" while it runs, else "stop" (a stop id, which is in `tokens`) or "length"
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token, if asked for
    scores: Scores | None = None


class Rejected(Struct, frozen=True, tag=True):
    """The request is not run, or not to its end. `code` is one of REJECTIONS."""

    request_id: str
    code: str
    message: str
    retry_after: float = 0.0  # seconds after which trying again makes sense; 0: it does not


class Pinned(Struct, frozen=True, tag=True):
    """What became of one pin of a request: so many tokens are pinned, or the reason why none."""

    request_id: str
    tokens: int
    refused: str = ""


class Invalidated(Struct, frozen=True, tag=True):
    """An `Invalidate` was carried out; so many tokens cannot be hit any more."""

    request_id: str
    tokens: int


class TenantStats(Struct, frozen=True, array_like=True):
    """What one tenant holds and has been given, in tokens."""

    cached: int  # in the tree now
    running: int  # in running requests' own pages now
    floor: int
    ceiling: int
    prompt_tokens: int  # from here on: counters
    cached_tokens: int
    computed_tokens: int


class Drain(Struct, frozen=True, tag=True):
    """Refuse new requests, answer those that were submitted, then end."""


class Stats(Struct, frozen=True, tag=True):
    """State of scheduler and cache about once a second; also the heartbeat. Counters only grow."""

    running: int
    waiting: int
    pages_total: int
    pages_free: int
    pages_tree: int  # held by the tree, whether evictable or not
    pages_evictable: int
    nodes: int
    steps: int
    prompt_tokens: int  # of requests whose whole prompt has been ordered
    cached_tokens: int  # of those, not computed
    computed_tokens: int  # prompt and answer tokens computed, re-computation included
    generated_tokens: int
    evicted_pages: int
    preemptions: int
    aborted: int
    finished: int
    rejected: int
    step_seconds: float  # sum over steps, as the worker measured
    waiting_on_step: float  # age in seconds of the oldest step without a result; 0 when none
    reachable_tokens: int = 0  # prompt tokens cached, or that would be if nothing had been evicted
    copied_tokens: int = 0  # of `cached_tokens`: copied from a partly equal page
    queued_tokens: int = 0  # uncached tokens of the waiting requests
    pages_pinned: int = 0
    pins_refused: int = 0
    invalidated_pages: int = 0
    tenants: dict[str, TenantStats] = {}  # the first 200 by name, the rest as one


# ---- to the launcher -----------------------------------------------------------------------------


class Started(Struct, frozen=True, tag=True):
    """A child process has come up. `process` is "tokenizer", "scheduler" or "worker"."""

    process: str
    startup: dict[str, float] = {}  # seconds per part
    detail: str = ""  # one line for the log: the URL, the pool, the limits


class Failed(Struct, frozen=True, tag=True):
    """A child cannot start; `reason` is a sentence for the person who started the server."""

    process: str
    reason: str


# ---- to all --------------------------------------------------------------------------------------


class Stop(Struct, frozen=True, tag=True):
    """End. A reason means that something died: open streams end with it as an error."""

    reason: str = ""


REJECTIONS = {
    "context_length_exceeded": 400,
    "invalid_request": 400,
    "quota_exceeded": 400,
    "queue_full": 503,
    "numerical_error": 500,
    "grammar_error": 400,
}

# what a negative token in a `StepDone` means: the code and message of a `Rejected`
LOSSES = {
    -1: ("numerical_error", "The model gave no finite numbers for this request."),
    -2: ("grammar_error", "No token fits the grammar that the answer has to follow."),
}

ToScheduler = Submit | Abort | Invalidate | SetQuota | WorkerReady | StepDone | Stop
ToWorker = RunStep | Stop
ToTokenizer = Ready | Tokens | Rejected | Pinned | Invalidated | Stats | Drain | Stop
ToLaunch = Started | Failed
