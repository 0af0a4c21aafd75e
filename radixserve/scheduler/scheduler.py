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

from radixserve.cache import POLICIES, Lease, PagePool, PrefixCache, RadixTree
from radixserve.config import SchedulerConfig, quotas
from radixserve.messages import (
    INT32_BYTES,
    LOSSES,
    Invalidate,
    Invalidated,
    Rejected,
    Row,
    RunStep,
    Scores,
    SetQuota,
    Stats,
    StepDone,
    Submit,
    TokenLogprobs,
    Tokens,
    WorkerReady,
    unpack,
)
from radixserve.scheduler.counters import Counters
from radixserve.scheduler.limits import Limits
from radixserve.scheduler.pinning import Answer, Pinning
from radixserve.scheduler.plan import Step, chunk, next_row
from radixserve.scheduler.queue import Queue
from radixserve.scheduler.request import Request, alone, tenant_of
from radixserve.scheduler.running import Running, admit
from radixserve.scheduler.snapshot import snapshot
from radixserve.scheduler.trace import Observer


class Scheduler:
    """Policies over one worker. All pages it hands out go through `cache`."""

    def __init__(
        self,
        config: SchedulerConfig,
        worker: WorkerReady,
        clock: Callable[[], float] = time.monotonic,
        observer: Observer | None = None,
    ) -> None:
        policy = POLICIES[config.radix_eviction_policy]
        tree = RadixTree(worker.page_size, policy, tenant_of)
        self.cache = PrefixCache(
            PagePool(worker.num_pages),
            tree,
            copy_pages=not config.disable_page_copy,
            pin_budget=config.pin_budget,
            ledger_pages=config.ledger_pages,
        )
        self.config = config
        self.clock = clock
        self.observer = observer
        self.max_running = worker.max_rows
        self.step_tokens = worker.step_tokens
        enough = self.max_running - 1 + worker.page_size
        assert self.step_tokens >= enough, "a step holds a page beside a token of every other slot"
        self.waiting = Queue(config, self.cache, clock)
        self.limits = Limits(config, worker, self.cache, self.waiting)
        self.max_total_tokens = self.limits.total
        self.requests: dict[str, Request] = {}
        self.running = Running(self.cache, worker.max_rows)
        self.outbox: list[tuple[int, Answer]] = []  # (origin, message)
        self.counters = Counters()
        self._steps: dict[int, Step] = {}  # in flight
        self._pinning = Pinning(config, self.cache, self.counters, self.outbox)
        self._drain = False  # order nothing before all results are in: pages are short
        self._arrivals = 0
        for tenant, floor, ceiling in quotas(config.tenant_quotas):
            self.limits.set_quota(SetQuota(tenant, floor, ceiling))

    # ---- what comes in ---------------------------------------------------------------------------

    def submit(self, message: Submit) -> None:
        """Queue a request, or say why not."""
        refusal = self.limits.refusal(message, self.counters)
        if message.request_id in self.requests:
            text = "A request with this id is running or waiting."
            refusal = Rejected(message.request_id, "invalid_request", text)
        if refusal is not None:
            self.counters.rejected += 1
            self.outbox.append((message.origin, refusal))
            return
        if self.config.disable_radix_cache:
            message = alone(message)
        room = self.limits.room(message.namespace.tenant) - len(message.prompt) // INT32_BYTES
        most = min(message.max_tokens, room)
        request = Request(message, self._arrivals, most, self.clock())
        self._arrivals += 1
        self.requests[message.request_id] = request
        self.waiting.add(request)

    def abort(self, request_id: str) -> None:
        """End a request that nobody waits for. What it computed stays for others."""
        request = self.requests.get(request_id)
        if request is not None:
            self.counters.aborted += 1
            self._end(request)

    def invalidate(self, message: Invalidate) -> None:
        """Forget what is cached for a prefix, or all, while requests run on it."""
        self.cache.at(self.clock())
        whose = message.namespace
        tokens = self.cache.invalidate(whose, message.prefix) if whose else self.cache.clear()
        self.outbox.append((message.origin, Invalidated(message.request_id, tokens)))

    def set_quota(self, message: SetQuota) -> None:
        """Bound a tenant. Requests that can never be finished within the bounds are refused."""
        self.limits.set_quota(message)
        for request in [*self.requests.values()]:
            refusal = self.limits.over_quota(request.submit, request.known)
            if refusal is not None:
                self._refuse(request, refusal)
            else:
                room = self.limits.room(request.tenant) - request.prompt_len
                most = min(request.submit.max_tokens, room)
                request.max_tokens = max(most, request.generated + max(request.unseen, 1))

    def done(self, result: StepDone) -> None:
        """Take the result of the oldest step in flight."""
        step = self._steps.pop(result.step)
        self.counters.step_done(result.seconds, step.prefill + step.decodes)
        for request in step.named:
            request.in_flight -= 1
        for request, scores in zip(step.scoring, result.scores, strict=True):
            self._take_scores(request, scores)
        data = result.tokens
        tokens = unpack(data)
        assert len(tokens) == len(step.sampling), "a step returns one token per row that wanted one"
        logprobs = result.logprobs or (None,) * len(tokens)
        at = 0
        for request, token, logprob in zip(step.sampling, tokens, logprobs, strict=True):
            request.unseen -= 1
            if token == -1:
                self.running.lose(request)
            if not request.done:
                self._take(request, token, data[at : at + INT32_BYTES], logprob)
            at += INT32_BYTES
        for request in step.named:
            if request.done and not request.in_flight and request.slot >= 0:
                self.running.leave(request)
        if not self._steps:
            self._drain = False
        if self.observer is not None:
            self.observer.step(step.prefill, step.decodes, result.seconds)

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
        if self._drain or not self.requests:
            return None
        self.cache.begin(self.clock())
        step = Step(self.step_tokens)
        self._continue(step)
        if not self._drain and self.running.free_slots and self.waiting:
            self._start(step)
        return self._send(step) if step.named else None

    def _continue(self, step: Step) -> None:
        """Rows of the running requests, oldest first; a prefill leaves every decode its token."""
        decodes = sum(r.known + r.unseen - r.ordered == 1 for r in self.running)
        for request in self.running:
            decode = request.known + request.unseen - request.ordered == 1
            decodes -= decode
            if request.slot < 0 or not request.wants_step:
                continue  # preempted in this loop, or waiting for its last results
            if decode:
                self._decode(request, step)
            else:
                self._row(request, step, step.budget - decodes)

    def _start(self, step: Step) -> None:
        """Admit waiting requests while slots, pages and budget last; each gets its first row."""
        reserve, blocked = self.running.reserve(), set[str]()
        while self.running.free_slots and step.budget >= self.cache.page_size:
            request = self.waiting.head(blocked)
            if request is None:
                return
            if not self.running.acquire(request, reserve):
                at_ceiling = self.cache.at_ceiling
                if self._give_way(request, at_ceiling):
                    continue
                if not at_ceiling:
                    return
                blocked.add(request.tenant)
                continue
            self.waiting.admit(request)
            step.admits.append(admit(request))
            self._row(request, step, step.budget)
            assert step.named[-1] is request, "an admission found its pages and has its first row"
            reserve.add(request.tenant, self.running.still_to_take(request))

    def _send(self, step: Step) -> RunStep:
        self.counters.steps += 1
        self.counters.computed_tokens += step.prefill + step.decodes
        for tenant, tokens in step.computed.items():
            self.waiting.served(tenant, tokens)
            self.counters.tenants[tenant].computed_tokens += tokens
        self._steps[self.counters.steps] = step
        freed = self.running.take_freed()
        return RunStep(self.counters.steps, tuple(step.rows), tuple(step.admits), freed)

    def _decode(self, request: Request, step: Step) -> None:
        """The row of a request with one token to compute: the shortest way, it is taken most."""
        lease, start, pages = request.lease, request.ordered, b""
        assert lease is not None, "only an admitted request gets a row"
        if start == len(lease.pages) * self.cache.page_size:
            if not self.cache.append(lease, start + 1) and not self._make_room(request, start + 1):
                return
            pages = lease.pages[request.told :].tobytes()
            request.told = len(lease.pages)
        lease.num_tokens = start + 1
        at = start * INT32_BYTES
        row = Row(request.slot, start, bytes(request.tokens[at : at + INT32_BYTES]), pages)
        request.compute(1)
        self._ordered(request, lease, step, row)

    def _row(self, request: Request, step: Step, budget: int) -> None:
        """Give the request its part of this step, if budget and pages allow one."""
        lease = request.lease
        assert lease is not None, "only an admitted request gets a row"
        request.reuse(self.cache.advance(lease, request.tokens))
        count = chunk(request.ordered, request.to_compute, budget, self.cache.page_size)
        end = request.ordered + count
        if not count or not (self.cache.append(lease, end) or self._make_room(request, end)):
            return
        self._ordered(request, lease, step, next_row(request, lease, count))

    def _ordered(self, request: Request, lease: Lease, step: Step, row: Row) -> None:
        """A row is part of the step; from now on others can stand on the pages that it fills."""
        request.in_flight += 1
        step.add(request, row)
        if row.sample:
            request.unseen += 1
            if request.ordered == request.prompt_len:
                self._prompt_done(request)
        committable = request.committable
        if committable // self.cache.page_size > lease.committed:
            self.cache.commit(lease, request.tokens, committable)
        if request.pins:
            self._pinning.carry_out(request, lease)

    def _prompt_done(self, request: Request) -> None:
        reused = request.reused
        self.counters.copied_tokens += min(request.copied, reused)
        self.counters.prompt_done(request.tenant, request.prompt_len, reused, request.reachable)

    # ---- admission and preemption ----------------------------------------------------------------

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Preempt the youngest until `request` has its pages. False: it gets no row in this step.

        Whom a step in flight names cannot be preempted yet; then nothing more is ordered until all
        results are in. Whoever is in this step already is older than `request` and stays. Pins
        end before the last request would have to go.
        """
        lease = request.lease
        assert lease is not None, "only an admitted request gets pages"
        pages = self.cache.num_pages(num_tokens) - len(lease.pages)
        own_only = self.cache.over_ceiling(request.submit.namespace, pages)
        victims = [
            victim
            for victim in self.running.youngest_first()
            if victim.lease is not None and (victim.tenant == request.tenant or not own_only)
        ]
        for victim in victims:
            if victim.in_flight:
                self._drain = True
                return False
            if victim is request and len(victims) == 1:
                whose = lease.node.account if own_only else None
                while self.cache.pins.give_way(whose):
                    if self.cache.append(lease, num_tokens):
                        return True
            self._preempt(victim)
            if victim is request:
                return False
            if self.cache.append(lease, num_tokens):
                return True
        raise AssertionError("a request that asks for pages is running")

    def _give_way(self, request: Request, at_ceiling: bool) -> bool:
        """End a pin for a request that cannot be admitted though nothing runs that would end."""
        if not at_ceiling:
            return not self.running and self.cache.pins.give_way()
        account = self.cache.tree.accounts.of(request.tenant)
        return not self.running.runs(request.tenant) and self.cache.pins.give_way(account)

    def _preempt(self, request: Request) -> None:
        """Back to the front of the queue; what it computed stays in the tree, for it to hit."""
        self.counters.preemptions += 1
        self.running.leave(request)
        request.ordered = 0
        request.preempted = True
        self.waiting.add(request)

    # ---- results and endings ---------------------------------------------------------------------

    def _take(
        self, request: Request, token: int, data: bytes, logprob: TokenLogprobs | None
    ) -> None:
        submit = request.submit
        if token < 0:
            self._lose(request, token)
            return
        request.append(data)
        self.counters.generated_tokens += 1
        finish = ""
        stop_ids = submit.sampling.stop_ids
        if stop_ids and token in stop_ids and request.generated > submit.sampling.min_tokens:
            finish = "stop"
        elif request.generated >= request.max_tokens:
            finish = "length"
        if finish:
            self._pinning.answer_rest(request)
        logprobs = () if logprob is None else (logprob,)
        message = Tokens(submit.request_id, data, request.reused, finish, logprobs)
        self.outbox.append((submit.origin, message))
        if finish:
            self.counters.finished += 1
            self._end(request, finished=True)

    def _take_scores(self, request: Request, scores: Scores | None) -> None:
        request.lost = request.lost or scores is None
        if request.done:
            return
        if scores is None:
            self._lose(request, -1)
            return
        name = request.submit.request_id
        message = Tokens(name, b"", request.reused, scores=scores)
        self.outbox.append((request.submit.origin, message))

    def _lose(self, request: Request, token: int) -> None:
        """The worker cannot go on with a request; the others do."""
        self._refuse(request, Rejected(request.submit.request_id, *LOSSES[token]))

    def _refuse(self, request: Request, why: Rejected) -> None:
        """End a request that was taken and cannot be finished."""
        self.counters.rejected += 1
        self._pinning.answer_rest(request)
        self.outbox.append((request.submit.origin, why))
        self._end(request)

    def _end(self, request: Request, *, finished: bool = False) -> None:
        """Nothing more is computed for the request; its slot is free when no step names it."""
        request.done = True
        del self.requests[request.submit.request_id]
        self._pinning.answer_rest(request)
        if self.observer is not None:
            self.observer.ended(request)
        if request.lease is None:
            self.waiting.remove(request)
        elif not request.in_flight:
            self.running.leave(request)
        elif finished:  # what is in flight computes no more than the token that ended it
            self.running.end_lease(request)

    def stats(self, waiting_on_step: float = 0.0) -> Stats:
        """A snapshot for metrics and health."""
        return snapshot(
            self.cache,
            self.counters,
            self.limits,
            running=len(self.running),
            waiting=len(self.waiting),
            queued_tokens=self.waiting.tokens,
            waiting_on_step=waiting_on_step,
        )
