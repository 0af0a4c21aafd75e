"""Steps to choose tokens for: the tensors that `edit_logits` and `sample` take, from plain rows."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from triton.runtime import interpreter

from radixserve_kernels import reference_sampling
from radixserve_kernels.sampling_params import Params, pack, pack_edits

VOCABS = (1, 7, 600, 4099)
NEAR = 1e-6  # of the whole mass: what float32 weights of two libraries may differ by

generated = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

params = st.builds(
    Params,
    history=st.booleans(),
    repetition=st.sampled_from([1.0, 0.7, 1.8]),
    frequency=st.sampled_from([0.0, 0.9, -0.3]),
    presence=st.sampled_from([0.0, 1.1, -0.4]),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 50, 400, 3000]),
    top_p=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0, 1.5]),
    seed=st.integers(-(2**63), 2**64 - 1),
    position=st.integers(0, 2**20),
)


@contextmanager
def quick_calls():
    """The interpreter prepares triton's language anew in every call of a device function.

    Once per function is enough: what a launch prepares it takes back, what a call prepares stays.
    """
    called, call = set(), interpreter.InterpretedFunction.__call__

    def quick(self, *arguments, **named):
        if self.fn in called:
            return self.rewrite()(*arguments, **named)
        called.add(self.fn)
        return call(self, *arguments, **named)

    interpreter.InterpretedFunction.__call__ = quick
    try:
        yield
    finally:
        interpreter.InterpretedFunction.__call__ = call


@dataclass
class Step:
    """Logits of S rows, and what is wanted of them; slots are the rows' numbers, backwards."""

    logits: torch.Tensor
    params: torch.Tensor
    counts: torch.Tensor
    edits: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    last_tokens: torch.Tensor

    def copy(self) -> "Step":
        return Step(
            self.logits.clone(),
            self.params,
            self.counts.clone(),
            self.edits,
            self.last_tokens.clone(),
        )

    def edit(self, op) -> torch.Tensor:
        return op(self.logits, self.params, self.counts, *self.edits)

    def choose(self, edit, sample) -> torch.Tensor:
        """The tokens of both ops; `logits`, `counts` and `last_tokens` are as they leave them."""
        maxima = self.edit(edit)
        return sample(self.logits, self.params, maxima, self.counts, self.last_tokens)


def logits_of(rows: int, vocab: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * spread


def step(logits, rows, device, *, bias=(), masked=(), seed=0) -> Step:
    """A step of `rows` (Params) with some history in every slot."""
    num_rows, vocab = logits.shape
    generator = torch.Generator().manual_seed(seed + 1)
    seen = torch.rand(num_rows, vocab, generator=generator) < 0.3
    counts = torch.randint(0, 7, (num_rows, vocab), generator=generator, dtype=torch.int32) * seen
    edits = pack_edits(num_rows, bias, masked)
    return Step(
        logits.clone().to(device),
        torch.from_numpy(
            pack([replace(row, slot=num_rows - 1 - i) for i, row in enumerate(rows)])
        ).to(device),
        counts.to(device),
        tuple(torch.from_numpy(a).to(device) for a in (edits.start, edits.token, edits.amount)),
        torch.full((num_rows,), -9, device=device),
    )


def assert_same_draws(tokens, expected, logits, params) -> None:
    """Equal tokens, or both where the cumulative distribution over `logits` [S, vocab] is at u."""
    assert tokens.dtype == torch.int32 and tokens.shape == (len(logits),)
    wanted = reference_sampling.unpack(params)
    for row in (tokens != expected).nonzero().flatten().tolist():
        weights = reference_sampling.weights(logits[row], wanted[row])
        cumulative = weights.cumsum(0) / weights.sum()
        u = reference_sampling.uniform(wanted[row].seed, wanted[row].position)
        for token in (int(tokens[row]), int(expected[row])):
            assert weights[token] > 0, (row, token)
            below = cumulative[token] - weights[token] / weights.sum()
            assert below - NEAR <= u <= cumulative[token] + NEAR, (row, token)
