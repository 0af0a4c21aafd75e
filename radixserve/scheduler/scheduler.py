"""The scheduler: a queue, running requests, and the steps that the worker is to run.

A state machine without sockets: `submit`, `abort` and `done` change it, `next_step` orders work,
`outbox` holds what the tokenizers are to be told. Its clock is given to it (seconds, as from
`time.monotonic`). `process.py` gives it messages; `llm.py`, the simulator and the tests call it.

Steps are ordered ahead of results: a step may be ordered while the one before is still running.
So pages are committed when their step is *ordered*, not when it is done. The worker runs steps in
order and writes a layer's K/V before anyone attends, so every step that can see a committed page
runs no earlier than the step that writes it. That is what lets requests share a prefix that is
still being computed, even within one step.
"""

import time
from collections.abc import Callable

from msgspec.structs import replace

from radixserve.cache import POLICIES, Lease, PagePool, PrefixCache, RadixTree
from radixserve.config import SchedulerConfig
from radixserve.messages import (
    INT32_BYTES,
    Admit,
    Namespace,
    Rejected,
    Row,
    RunStep,
    Stats,
    StepDone,
    Submit,
    TokenLogprobs,
    Tokens,
    WorkerReady,
    pack,
    unpack,
)
from radixserve.scheduler.counters import Counters
from radixserve.scheduler.plan import chunk
from radixserve.scheduler.queue import Queue
from radixserve.scheduler.request import Request


class Scheduler:
    """Policies over one worker. All pages it hands out go through `cache`."""

    def __init__(
        self,
        config: SchedulerConfig,
        worker: WorkerReady,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        tree = RadixTree(worker.page_size, POLICIES[config.radix_eviction_policy])
        self.cache = PrefixCache(PagePool(worker.num_pages), tree)
        self.config = config
        self.clock = clock
        self.max_running = worker.max_rows
        self.step_tokens = worker.step_tokens
        enough = self.max_running - 1 + worker.page_size
        assert self.step_tokens >= enough, "a step holds a page beside a token of every other slot"
        self.max_total_tokens = min(worker.context_length, worker.num_pages * worker.page_size)
        self.requests: dict[str, Request] = {}
        self.waiting = Queue(config, self.cache, clock)
        self.running: list[Request] = []  # in order of admission, so oldest first
        self.outbox: list[tuple[int, Tokens | Rejected]] = []  # (origin, message)
        self.counters = Counters()
        self._slots = list(range(self.max_running - 1, -1, -1))
        self._freed: list[int] = []  # slots to name in the next step
        self._steps: dict[int, list[Request]] = {}  # in flight -> requests by sampling row
        self._named: dict[int, list[Request]] = {}  # in flight -> requests by row
        self._drain = False  # order nothing before all results are in: pages are short
        self._arrivals = 0
        self._admissions = 0

    # ---- what comes in ---------------------------------------------------------------------------

    def submit(self, message: Submit) -> None:
        """Queue a request, or say why not."""
        if refusal := self._refusal(message):
            self.counters.rejected += 1
            self.outbox.append((message.origin, refusal))
            return
        if self.config.disable_radix_cache:
            message = _alone(message)
        room = self.max_total_tokens - len(message.prompt) // INT32_BYTES
        request = Request(message, self._arrivals, min(message.max_tokens, room))
        self._arrivals += 1
        self.requests[message.request_id] = request
        self.waiting.add(request)

    def abort(self, request_id: str) -> None:
        """End a request that nobody waits for. What it computed stays for others."""
        request = self.requests.pop(request_id, None)
        if request is None:
            return
        self.counters.aborted += 1
        if request.lease is None:
            self.waiting.remove(request)
            request.done = True
        else:
            self._end(request)

    def done(self, result: StepDone) -> None:
        """Take the result of the oldest step in flight."""
        sampled, named = self._steps.pop(result.step), self._named.pop(result.step)
        self.counters.step_seconds += result.seconds
        for request in named:
            request.in_flight -= 1
        tokens = unpack(result.tokens)
        assert len(tokens) == len(sampled), "a step returns one token per row that wanted one"
        logprobs = result.logprobs or (None,) * len(tokens)
        for request, token, logprob in zip(sampled, tokens, logprobs, strict=True):
            request.unseen -= 1
            if not request.done:
                self._take(request, token, logprob)
        for request in named:
            if request.done and not request.in_flight:
                self._leave(request)
        if not self._steps:
            self._drain = False

    @property
    def in_flight(self) -> int:
        """Steps that were ordered and are not done."""
        return len(self._steps)

    @property
    def idle(self) -> bool:
        return not self.requests and not self._steps

    # ---- what goes out ---------------------------------------------------------------------------

    def next_step(self) -> RunStep | None:
        """Order one step, or None if there is nothing to do before more messages come."""
        if self._drain:
            return None
        step = _Step(self.step_tokens)
        self._continue(step)
        if not self._drain:
            self._start(step)
        return self._send(step) if step.named else None

    def _continue(self, step: "_Step") -> None:
        """Rows of the running requests, oldest first; a prefill leaves every decode its token."""
        decodes = sum(1 for r in self.running if r.wants_step and r.to_compute == 1)
        for request in [*self.running]:
            if request.slot < 0 or not request.wants_step:
                continue  # preempted in this loop, or waiting for its last results
            decode = request.to_compute == 1
            decodes -= decode
            self._row(request, step, step.budget if decode else step.budget - decodes)

    def _start(self, step: "_Step") -> None:
        """Admit waiting requests while slots, pages and budget last; each gets its first row."""
        if not self._slots or not self.waiting:
            return
        while self._slots and step.budget >= self.cache.page_size:
            request = self.waiting.head()
            if request is None or not self._acquire(request):
                break
            self.waiting.admit(request)
            step.admits.append(self._admit(request))
            self._row(request, step, step.budget)
            assert step.named[-1] is request, "an admission found its pages and has its first row"

    def _send(self, step: "_Step") -> RunStep:
        self.counters.steps += 1
        number = self.counters.steps
        self._named[number] = step.named
        self._steps[number] = [
            r for r, row in zip(step.named, step.rows, strict=True) if row.sample
        ]
        freed, self._freed = tuple(self._freed), []
        return RunStep(number, tuple(step.rows), tuple(step.admits), freed)

    def _row(self, request: Request, step: "_Step", budget: int) -> None:
        """Give the request its part of this step, if budget and pages allow one."""
        lease = request.lease
        assert lease is not None, "only an admitted request gets a row"
        if request.to_compute > 1:
            request.reuse(self.cache.advance(lease, request.tokens))
        count = chunk(request.ordered, request.to_compute, budget, self.cache.page_size)
        end = request.ordered + count
        if count and (self.cache.append(lease, end) or self._make_room(request, end, step)):
            step.budget -= count
            step.named.append(request)
            step.rows.append(self._ordered(request, lease, count))

    def _ordered(self, request: Request, lease: Lease, count: int) -> Row:
        """Count the tokens as computed by this step, and let others stand on them at once."""
        start = request.ordered
        tokens = request.tokens[start * INT32_BYTES : (start + count) * INT32_BYTES]
        request.compute(count)
        request.in_flight += 1
        self.counters.computed_tokens += count
        self.waiting.served(request.submit.namespace.tenant, count)
        sample = request.to_compute == 0
        if sample and request.ordered == request.prompt_len:
            self.counters.prompt_tokens += request.prompt_len
            self.counters.cached_tokens += request.reused
        request.unseen += sample
        pages = lease.pages[request.told :]
        request.told = len(lease.pages)
        self.cache.commit(lease, request.tokens, request.committable)
        return Row(request.slot, start, bytes(tokens), pack(pages), sample)

    # ---- admission and preemption ----------------------------------------------------------------

    def _acquire(self, request: Request) -> bool:
        """A slot and a lease for the request, if the pages for all its tokens can be had."""
        namespace, tokens = request.submit.namespace, request.tokens
        lease = self.cache.acquire(namespace, tokens, headroom=self._reserve())
        if lease is None:
            return False
        request.lease = lease
        request.slot, request.told = self._slots.pop(), 0
        request.admission = self._admissions
        self._admissions += 1
        self.running.append(request)
        request.reuse(lease.num_tokens)
        return True

    def _reserve(self) -> int:
        """Pages that the running requests are yet to take: their known tokens and one more page.

        Without the extra page, new admissions would be paid for by preemptions at once.
        """
        pages = 0
        for request in self.running:
            if request.lease is not None and not request.done:
                wanted = self.cache.num_pages(request.known + request.unseen)
                pages += max(wanted - len(request.lease.pages), 0) + 1
        return pages

    def _admit(self, request: Request) -> Admit:
        sampling = request.submit.sampling
        history = sampling.needs_history or sampling.min_tokens > 0
        return Admit(
            request.slot,
            sampling,
            bytes(request.tokens) if history else b"",
            request.prompt_len if history else 0,
        )

    def _make_room(self, request: Request, num_tokens: int, step: "_Step") -> bool:
        """Preempt the youngest until `request` has its pages. False: it gets no row in this step.

        Whom a step in flight names cannot be preempted yet; then nothing more is ordered until all
        results are in. Whoever is in this step already is older than `request` and stays.
        """
        assert request.lease is not None, "only an admitted request gets pages"
        for victim in [*reversed(self.running)]:
            if victim.in_flight:
                self._drain = True
                return False
            self._preempt(victim)
            if victim is request:
                return False
            if self.cache.append(request.lease, num_tokens):
                return True
        raise AssertionError("a request that asks for pages is running")

    def _preempt(self, request: Request) -> None:
        """Back to the front of the queue; what it computed stays in the tree, for it to hit."""
        self.counters.preemptions += 1
        self._withdraw(request)
        request.ordered = 0
        request.preempted = True
        self.waiting.add(request)

    # ---- results and endings ---------------------------------------------------------------------

    def _take(self, request: Request, token: int, logprob: TokenLogprobs | None) -> None:
        submit = request.submit
        if token < 0:
            self._lose(request)
            return
        request.tokens += pack((token,))
        self.counters.generated_tokens += 1
        finish = ""
        stops = token in submit.sampling.stop_ids
        if stops and request.generated > submit.sampling.min_tokens:
            finish = "stop"
        elif request.generated >= request.max_tokens:
            finish = "length"
        self.outbox.append(
            (
                submit.origin,
                Tokens(
                    submit.request_id,
                    pack((token,)),
                    request.reused,
                    finish,
                    () if logprob is None else (logprob,),
                ),
            )
        )
        if finish:
            self.counters.finished += 1
            del self.requests[submit.request_id]
            self._end(request)

    def _lose(self, request: Request) -> None:
        """The worker cannot go on with a request; the others do."""
        self.counters.rejected += 1
        request.lost = True
        name = request.submit.request_id
        text = "The model gave no finite numbers for this request."
        self.outbox.append((request.submit.origin, Rejected(name, "numerical_error", text)))
        del self.requests[name]
        self._end(request)

    def _end(self, request: Request) -> None:
        request.done = True
        if not request.in_flight:
            self._leave(request)

    def _leave(self, request: Request) -> None:
        if request.lease is not None:
            self._withdraw(request)

    def _withdraw(self, request: Request) -> None:
        """Commit what is whole, give back the rest, and free the slot."""
        assert request.lease is not None and not request.in_flight, "a step names the slot"
        if request.lost:
            self.cache.discard(request.lease)
        else:
            self.cache.commit(request.lease, request.tokens, request.committable)
            self.cache.release(request.lease)
        request.lease = None
        self.running.remove(request)
        self._slots.append(request.slot)
        self._freed.append(request.slot)
        request.slot = -1

    def _refusal(self, message: Submit) -> Rejected | None:
        length = len(message.prompt) // INT32_BYTES
        if length == 0:
            return Rejected(message.request_id, "invalid_request", "The prompt has no tokens.")
        if message.max_tokens < 1:
            return Rejected(message.request_id, "invalid_request", "No token is asked for.")
        if length >= self.max_total_tokens:
            return Rejected(
                message.request_id,
                "context_length_exceeded",
                f"The prompt has {length} tokens; at most {self.max_total_tokens - 1} fit.",
            )
        if len(self.waiting) >= self.config.max_queued_requests:
            return Rejected(
                message.request_id,
                "queue_full",
                f"{len(self.waiting)} requests are waiting; try again later.",
            )
        return None

    def stats(self, waiting_on_step: float = 0.0) -> Stats:
        """A snapshot for metrics and health."""
        cache, counters = self.cache, self.counters
        return Stats(
            running=len(self.running),
            waiting=len(self.waiting),
            pages_total=cache.pool.num_pages,
            pages_free=len(cache.pool),
            pages_tree=cache.tree.num_pages,
            pages_evictable=cache.tree.reclaimable,
            nodes=cache.tree.num_nodes,
            steps=counters.steps,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            computed_tokens=counters.computed_tokens,
            generated_tokens=counters.generated_tokens,
            evicted_pages=cache.evicted_pages,
            preemptions=counters.preemptions,
            aborted=counters.aborted,
            finished=counters.finished,
            rejected=counters.rejected,
            step_seconds=counters.step_seconds,
            waiting_on_step=waiting_on_step,
        )


class _Step:
    """A step while it is put together."""

    def __init__(self, budget: int) -> None:
        self.budget = budget  # tokens that may still be added
        self.rows: list[Row] = []
        self.named: list[Request] = []  # whose row it is, for each of `rows`
        self.admits: list[Admit] = []


def _alone(message: Submit) -> Submit:
    """The same request in a namespace of its own, where there is nothing to share."""
    return replace(message, namespace=Namespace(tenant="uncached", salt=message.request_id))
