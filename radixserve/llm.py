"""The same parts in one process, without sockets: offline use, tests and benches.

llm = LLM(Config(worker=WorkerConfig(model_path=folder)))
answers = llm.generate([[1, 2, 3]], Sampling(seed=0, temperature=0), max_tokens=16)
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from radixserve.config import Config, cache_home
from radixserve.messages import (
    CacheDirectives,
    Namespace,
    Pinned,
    Rejected,
    Sampling,
    Submit,
    TokenLogprobs,
    Tokens,
    ToTokenizer,
    pack,
    unpack,
)
from radixserve.models.hub import resolve
from radixserve.scheduler.scheduler import Scheduler
from radixserve.worker.pending import Pending
from radixserve.worker.runner import Runner

STEPS_AHEAD = 2  # as the scheduler process does it
DEFAULT = Namespace()
NO_DIRECTIVES = CacheDirectives()


@dataclass
class Answer:
    """What one prompt was answered."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    # of the prompt's tokens from `Sampling.logprob_start` on; the very first token has none
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    cached_tokens: int = 0
    finish: str = ""  # "stop", "length", or the code of a rejection
    pins: list[Pinned] = field(default_factory=list)  # what became of its pins


class LLM:
    """A scheduler and a runner. The cache lives as long as the object."""

    def __init__(self, config: Config) -> None:
        folder = resolve(
            config.worker.model_path,
            cache_home(),
            lambda line: None,
            tokenizer=False,
            weights=config.worker.load_format != "dummy",
        )
        self.runner = Runner(config.worker, Path(folder))
        self.scheduler = Scheduler(config.scheduler, self.runner.ready)
        self._submitted = 0

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling],
        max_tokens: int,
        *,
        namespace: Namespace = DEFAULT,
        priority: int = 0,
        cache: CacheDirectives = NO_DIRECTIVES,
    ) -> list[Answer]:
        """Answer `prompts` (token ids) together; one `Sampling` for all, or one each.

        `namespace` (with the tenant), `priority` and `cache` hold for all of them.
        """
        params = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
        answers: dict[str, Answer] = {}
        for prompt, one in zip(prompts, params, strict=True):
            name = str(self._submitted)
            self._submitted += 1
            answers[name] = Answer()
            self.scheduler.submit(
                Submit(name, 0, pack(prompt), one, max_tokens, namespace, priority, cache)
            )
        self._run(answers)
        return list(answers.values())

    def _run(self, answers: dict[str, Answer]) -> None:
        pending: deque[Pending] = deque()
        while True:
            while len(pending) < STEPS_AHEAD and (step := self.scheduler.next_step()):
                pending.append(self.runner.submit(step))
            self._collect(answers)
            if not pending:
                return
            self.scheduler.done(pending.popleft().result())

    def _collect(self, answers: dict[str, Answer]) -> None:
        for _, message in self.scheduler.outbox:
            _take(answers, message)
        self.scheduler.outbox.clear()


def _take(answers: dict[str, Answer], message: ToTokenizer) -> None:
    match message:
        case Rejected():
            answers[message.request_id].finish = message.code
        case Pinned():
            answers[message.request_id].pins.append(message)
        case Tokens():
            answer = answers[message.request_id]
            answer.tokens += unpack(message.tokens)
            answer.logprobs += message.logprobs
            if message.scores is not None:
                answer.prompt_logprobs += message.scores.unpack()
            answer.cached_tokens = message.cached_tokens
            answer.finish = message.finish
