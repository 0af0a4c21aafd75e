"""What a request wants changed in its logits before the choice: penalties, bias, masked stop ids.

Sparse: costs the tokens a request has seen, not the vocabulary. Called by sampling.
"""

from collections.abc import Sequence

import numpy as np
import torch

from radixserve.worker.sampling.state import SlotState


def edit_logits(logits: torch.Tensor, slots: Sequence[SlotState]) -> bool:
    """Change rows of `logits` [S, vocab] float32 in place; `slots[i]` belongs to row i.

    Returns whether any were to be changed.
    """
    return any([edit(logits, slots) for edit in (_penalise, _add_bias, _mask_stop_ids)])


def _penalise(logits: torch.Tensor, slots: Sequence[SlotState]) -> bool:
    """Repetition (prompt and answer; Keskar et al. 2019, CTRL), frequency and presence (answer)."""
    rows = [row for row, slot in enumerate(slots) if slot.counts]
    if not rows:
        return False
    seen = [len(slots[row].counts) for row in rows]
    tokens = np.concatenate([np.fromiter(slots[row].counts.keys(), np.int64) for row in rows])
    counts = np.concatenate([np.fromiter(slots[row].counts.values(), np.int64) for row in rows])
    samplings = [slots[row].sampling for row in rows]
    frequency = np.repeat([s.frequency_penalty for s in samplings], seen)
    presence = np.repeat([s.presence_penalty for s in samplings], seen)
    repetition = np.repeat([s.repetition_penalty for s in samplings], seen)
    index = _index(logits, np.repeat(rows, seen), tokens)
    factor = _floats(logits, repetition)
    found = logits[index]
    found = torch.where(found > 0, found / factor, found * factor)
    logits[index] = found - _floats(logits, frequency * counts + presence * (counts > 0))
    return True


def _add_bias(logits: torch.Tensor, slots: Sequence[SlotState]) -> bool:
    """OpenAI's `logit_bias`: added to the logits of the named tokens."""
    bias = [(row, *pair) for row, slot in enumerate(slots) for pair in slot.sampling.logit_bias]
    if not bias:
        return False
    rows, tokens, amounts = (np.array(column) for column in zip(*bias, strict=True))
    logits.index_put_(_index(logits, rows, tokens), _floats(logits, amounts), accumulate=True)
    return True


def _mask_stop_ids(logits: torch.Tensor, slots: Sequence[SlotState]) -> bool:
    """No stop id before `min_tokens`. The lowest finite number, as a row must keep a maximum."""
    masked = [
        (row, token)
        for row, slot in enumerate(slots)
        if slot.generated < slot.sampling.min_tokens
        for token in slot.sampling.stop_ids
    ]
    if not masked:
        return False
    rows, tokens = (np.array(column) for column in zip(*masked, strict=True))
    logits[_index(logits, rows, tokens)] = torch.finfo(logits.dtype).min
    return True


def _index(
    logits: torch.Tensor, rows: np.ndarray, tokens: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.from_numpy(rows).to(logits.device),
        torch.from_numpy(tokens).to(logits.device),
    )


def _floats(logits: torch.Tensor, values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(logits.device)
