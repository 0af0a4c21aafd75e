"""What a sampler is, and what it gives. Implemented by the other files of this folder.

Order: what a grammar or a list of ids bars; penalties, logit bias, masked stop ids; then greedy, or
temperature, top-k, top-p over what top-k left, min-p, and one draw. Every draw is the inverse of
the distribution at a number that only (seed, position) decide, and rows never mix, so a seeded
request repeats whatever its batch, its chunks and its preemptions.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from radixserve.messages import Admit, TokenLogprobs
from radixserve.worker.sampling.grammar import Grammars

LOST = -1  # in place of a token: the row has no finite logits
BARRED = -2  # in place of a token: the row's grammar allows none
LOGPROB_FLOOR = -9999.0  # JSON has no -Infinity


class Logprobs(NamedTuple):
    """Log probabilities of the A rows that asked: the model's own, before any edit or truncation.

    Natural logarithms, at least LOGPROB_FLOOR.
    """

    rows: Sequence[int]  # [A], which of the S sampled rows
    wanted: Sequence[int]  # [A], how many of the best tokens each asked for, at most K
    chosen: Tensor  # [A] float32, of the token that was chosen
    ids: Tensor  # [A, K] integers, the best tokens, best first
    values: Tensor  # [A, K] float32, of those

    def messages(self, num_rows: int) -> tuple[TokenLogprobs | None, ...]:
        """Per sampled row, None where not asked. Waits for the device if the tensors are there."""
        found: list[TokenLogprobs | None] = [None] * num_rows
        chosen, ids, values = self.chosen.tolist(), self.ids.tolist(), self.values.tolist()
        for i, (row, wanted) in enumerate(zip(self.rows, self.wanted, strict=True)):
            top = zip(ids[i][:wanted], values[i][:wanted], strict=True)
            found[row] = TokenLogprobs(chosen[i], tuple(top))
        return tuple(found)


class Sampled(NamedTuple):
    """What a step's rows chose, still on the device."""

    tokens: Tensor  # [S] int32; LOST or BARRED where a row has no token
    logprobs: Logprobs | None = None  # None: no row asked


class Sampler(Protocol):
    """Chooses the next tokens of a step's rows; remembers what that depends on, slot by slot.

    `admit` and `free` come in the order of the steps, ahead of the step's `sample`. On a GPU none
    of them should wait for the device.
    """

    last_tokens: Tensor  # [max_slots] int32 on the device: what each slot chose last

    def __init__(
        self, max_slots: int, vocab_size: int, device: torch.device, grammars: Grammars
    ) -> None: ...

    def admit(self, admit: Admit) -> None:
        """A free slot stands for a new request, of which nothing but `admit` is known."""
        ...

    def free(self, slot: int) -> None:
        """Forget the slot's request."""
        ...

    def sample(self, logits: Tensor, slots: Sequence[int], positions: Sequence[int]) -> Sampled:
        """Tokens of S rows; they become the `last_tokens` of their slots and count as generated.

        `logits` [S, vocab] float32 is overwritten; `positions` [S] are where the tokens will stand.
        A lost row is lost alone, and its last token is some id of the vocabulary: a step that was
        already sent may name it.
        """
        ...
