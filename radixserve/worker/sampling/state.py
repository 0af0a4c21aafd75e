"""What a sampler on the host remembers of one request."""

import numpy as np
from msgspec import Struct

from radixserve.messages import Admit, Sampling


class SlotState(Struct, kw_only=True):
    """What the choice of a request's next token depends on, besides its logits."""

    sampling: Sampling
    generated: int = 0  # answer tokens, those before a preemption included
    counts: dict[int, int] = {}  # token -> times generated (0: in the prompt only), for penalties

    def record(self, token: int) -> None:
        """Take note of a generated token. Only for who needs the history."""
        self.counts[token] = self.counts.get(token, 0) + 1


def state_of(admit: Admit) -> SlotState:
    """The state of a request that is admitted, for the first time or after a preemption."""
    history = np.frombuffer(admit.history, dtype=np.int32)
    counts: dict[int, int] = {}
    if admit.sampling.needs_history:
        counts = dict.fromkeys(history.tolist(), 0)
        for token in history[admit.prompt_len :].tolist():
            counts[token] += 1
    return SlotState(
        sampling=admit.sampling,
        generated=max(0, len(history) - admit.prompt_len),
        counts=counts,
    )
