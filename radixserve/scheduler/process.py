"""The scheduler process: gives the scheduler its messages, and sends what it orders.

python -m radixserve.scheduler.process CONFIG_JSON
"""

import logging
import sys
import time

from radixserve.channel import Inbox, Outbox
from radixserve.child import become_child, parent_alive
from radixserve.config import Config
from radixserve.messages import (
    Abort,
    Failed,
    Invalidate,
    Ready,
    RunStep,
    SetQuota,
    Started,
    StepDone,
    Stop,
    Submit,
    ToLaunch,
    ToScheduler,
    ToTokenizer,
    ToWorker,
    WorkerReady,
)
from radixserve.scheduler.garbage import Collector
from radixserve.scheduler.scheduler import Scheduler
from radixserve.scheduler.trace import TraceWriter

log = logging.getLogger("radixserve.scheduler")

STEPS_AHEAD = 2  # ordered and not done: one runs, the next waits at the worker's door
HEARTBEAT = 1.0  # seconds between two `Stats`
POLL = 0.5  # seconds to wait for a message before looking after heartbeat and parent


class Process:
    """One inbox, and outboxes to the worker, the tokenizers and the launcher."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.inbox: Inbox[ToScheduler] = Inbox(config.run_dir, "scheduler", ToScheduler)
        self.worker: Outbox[ToWorker] = Outbox(config.run_dir, "worker")
        self.launch: Outbox[ToLaunch] = Outbox(config.run_dir, "launch")
        self.tokenizers: dict[int, Outbox[ToTokenizer]] = {0: Outbox(config.run_dir, "tokenizer0")}
        self.scheduler: Scheduler | None = None
        self.stopped = False
        self._sent: dict[int, float] = {}  # step in flight -> when it was sent
        self._beat = 0.0
        self._recorder: TraceWriter | None = None
        self._collector: Collector | None = None

    def run(self) -> None:
        """Serve until a Stop comes or the parent is gone."""
        while not self.stopped and parent_alive(self.config.launcher):
            for message in self.inbox.receive(POLL):
                self._take(message)
            if self.scheduler is not None:
                self._order(self.scheduler)
                self._tell(self.scheduler)
        if self._recorder:
            self._recorder.close()
        self.worker.close()
        self.launch.close()
        for tokenizer in self.tokenizers.values():
            tokenizer.close()
        self.inbox.close()

    def _take(self, message: ToScheduler) -> None:
        match message:
            case WorkerReady():
                self._begin(message)
            case Stop():
                self.stopped = True
            case _ if self.scheduler is None:
                log.warning("a message came before the worker was ready: %s", type(message))
            case Submit():
                self.scheduler.submit(message)
            case Abort():
                self.scheduler.abort(message.request_id)
            case Invalidate():
                self.scheduler.invalidate(message)
            case SetQuota():
                self.scheduler.set_quota(message)
            case StepDone():
                del self._sent[message.step]
                self.scheduler.done(message)

    def _begin(self, worker: WorkerReady) -> None:
        scheduler = Scheduler(self.config.scheduler, worker)
        if path := self.config.scheduler.record_trace:
            try:
                self._recorder = TraceWriter(
                    path, worker.page_size, worker.fingerprint, scheduler.clock
                )
            except OSError as error:
                reason = f"cannot record a trace in {path}: {error.strerror}"
                self.launch.send([Failed("scheduler", reason)])
                self.stopped = True
                return
            scheduler.observer = self._recorder
        self.scheduler = scheduler
        ready = Ready(
            context_length=worker.context_length,
            max_total_tokens=scheduler.max_total_tokens,
            vocab_size=worker.vocab_size,
            page_size=worker.page_size,
            num_pages=worker.num_pages,
            fingerprint=worker.fingerprint,
        )
        for tokenizer in self.tokenizers.values():
            tokenizer.send([ready])
        detail = (
            f"{worker.num_pages} pages of {worker.page_size} tokens, "
            f"{scheduler.max_running} running, {scheduler.step_tokens} tokens a step, "
            f"order {self.config.scheduler.schedule_policy}, "
            f"eviction {self.config.scheduler.radix_eviction_policy}"
        )
        self.launch.send([Started("scheduler", {}, detail)])
        self._collector = Collector(time.monotonic())

    def _order(self, scheduler: Scheduler) -> None:
        while scheduler.in_flight < STEPS_AHEAD:
            step: RunStep | None = scheduler.next_step()
            if step is None:
                return
            self._sent[step.step] = time.monotonic()
            self.worker.send([step])

    def _tell(self, scheduler: Scheduler) -> None:
        now = time.monotonic()
        batches: dict[int, list[ToTokenizer]] = {}
        for origin, message in scheduler.outbox:
            batches.setdefault(origin, []).append(message)
        scheduler.outbox.clear()
        if now - self._beat >= HEARTBEAT:
            self._beat = now
            if self._collector is not None:
                self._collector.beat(now, idle=scheduler.idle)
            oldest = min(self._sent.values(), default=now)
            for origin in self.tokenizers:
                batches.setdefault(origin, []).append(scheduler.stats(now - oldest))
        for origin, messages in batches.items():
            self.tokenizers[origin].send(messages)


def main() -> None:
    config = Config.decode(sys.argv[1])
    become_child(config.launcher)
    logging.basicConfig(level=config.log_level.upper(), format="%(name)s: %(message)s")
    Process(config).run()


if __name__ == "__main__":
    main()
