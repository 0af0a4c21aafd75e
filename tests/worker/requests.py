"""One request on a runner, in the least code: its slot, its pages, and where it is."""

from collections.abc import Sequence

from radixserve.messages import Admit, Row, RunStep, Sampling, StepDone, pack, unpack
from radixserve.worker.runner import Runner

GREEDY = Sampling(seed=0, temperature=0.0)


class Request:
    """Makes the rows of a request. `pages` must be enough for all it will compute."""

    def __init__(
        self,
        slot: int,
        prompt: Sequence[int],
        pages: Sequence[int],
        *,
        sampling: Sampling = GREEDY,
        computed: int = 0,
    ) -> None:
        self.slot = slot
        self.prompt = list(prompt)
        self.computed = computed  # as if a cached prefix of this length had been found
        self.pages = list(pages)
        self.admit = Admit(
            slot=slot,
            sampling=sampling,
            history=pack(prompt) if sampling.needs_history or sampling.min_tokens else b"",
            prompt_len=len(self.prompt),
        )
        self.answer: list[int] = []

    def prefill(self, num_tokens: int | None = None) -> Row:
        """The row for the next `num_tokens` of the prompt (default: all that is left)."""
        start = self.computed
        end = len(self.prompt) if num_tokens is None else start + num_tokens
        pages, self.pages = self.pages, []
        self.computed = end
        return Row(
            self.slot, start, pack(self.prompt[start:end]), pack(pages), end == len(self.prompt)
        )

    def decode(self) -> Row:
        self.computed += 1
        return Row(self.slot, self.computed - 1, b"")


def step(runner: Runner, *rows: Row, admits: Sequence[Admit] = ()) -> StepDone:
    return runner.run(RunStep(step=0, rows=rows, admits=tuple(admits)))


def free(runner: Runner, *slots: int) -> None:
    runner.run(RunStep(step=0, rows=(), frees=slots))


def answer(
    runner: Runner, request: Request, num_tokens: int, chunk: int | None = None
) -> list[int]:
    """Admit the request, run it alone to `num_tokens` answer tokens, free its slot."""
    admits = [request.admit]
    while len(request.prompt) - request.computed > (chunk or len(request.prompt)):
        step(runner, request.prefill(chunk), admits=admits)
        admits = []
    tokens = unpack(step(runner, request.prefill(), admits=admits).tokens)
    for _ in range(num_tokens - 1):
        tokens += unpack(step(runner, request.decode()).tokens)
    free(runner, request.slot)
    return tokens
