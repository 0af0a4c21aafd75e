"""What models want of attention beyond causal order. Of the op and its twin alike; no triton."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """scale: factor on q.k, a score before the softmax.

    softcap: scores become softcap * tanh(score / softcap); 0: they stay as they are.
    window: a token sees the last `window` tokens, itself one of them; 0: all before it.
    """

    scale: float
    softcap: float = 0.0
    window: int = 0
