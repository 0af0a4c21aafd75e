"""Log probabilities of a prompt's own tokens, where rows ask for them.

Called by the runner for steps with scored rows. All positions of a long chunk may be scored, and
their logits together could be gigabytes: they are made, looked at and dropped a few rows at a time.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from radixserve.messages import INT32_BYTES, Score, Scores
from radixserve.worker.sampling.sampler import LOGPROB_FLOOR
from radixserve.worker.upload import upload

LEAST_AT_ONCE = 16  # rows of logits: fewer would read the head's weights too often


def rows_at_once(max_rows: int) -> int:
    """Rows of logits that live at once, where `max_rows` requests may sample in a step."""
    return max(max_rows, LEAST_AT_ONCE)


class Scored(NamedTuple):
    """What the N scored tokens of a step's rows gave, still on the device."""

    counts: Sequence[int]  # of the rows that asked, how many tokens each
    wanted: Sequence[int]  # how many of the best tokens each asked for, at most K
    logprobs: Tensor  # [N] float32; NaN: the model gave no finite numbers
    ranks: Tensor  # [N] int32
    ids: Tensor  # [N, K] int32, the best tokens, best first
    values: Tensor  # [N, K] float32, of those

    def messages(self) -> tuple[Scores | None, ...]:
        """Per row that asked, None where it is lost. Waits for the device, if they are there."""
        columns = (self.logprobs, self.ranks, self.ids, self.values)
        arrays = [column.cpu().numpy() for column in columns]
        found, begin = list[Scores | None](), 0
        for count, wanted in zip(self.counts, self.wanted, strict=True):
            logprobs, ranks, ids, values = (a[begin : begin + count] for a in arrays)
            begin += count
            best = (ids[:, :wanted].tobytes(), values[:, :wanted].tobytes())
            whole = Scores(logprobs.tobytes(), ranks.tobytes(), *best)
            found.append(None if np.isnan(logprobs).any() else whole)
        return tuple(found)


def score(
    logits_of: Callable[[Tensor], Tensor],
    hidden: Tensor,
    asked: Sequence[Score],
    *,
    at_once: int,
) -> Scored:
    """The log probabilities that rows ask for (at least one), in the rows' order.

    `hidden` [N, hidden size]: what each of the N tokens is predicted from; `logits_of` makes
    logits [R, vocab] float32 of R of them, and gets at most `at_once`.
    """
    tokens = np.concatenate([np.frombuffer(each.tokens, dtype=np.int32) for each in asked])
    targets = upload({"targets": tokens}, hidden.device)["targets"].long()
    most = max(each.best for each in asked)
    parts = [
        _look(logits_of(rows), part, most)
        for rows, part in zip(
            torch.split(hidden, at_once), torch.split(targets, at_once), strict=True
        )
    ]
    logprobs, ranks, ids, values = (torch.cat(column) for column in zip(*parts, strict=True))
    counts = [len(each.tokens) // INT32_BYTES for each in asked]
    return Scored(counts, [each.best for each in asked], logprobs, ranks, ids, values)


def _look(logits: Tensor, targets: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log probability and rank of each row's target, and its best tokens with theirs."""
    all_logprobs = logits.log_softmax(-1)
    logprobs = all_logprobs.gather(1, targets[:, None])
    ranks = (all_logprobs >= logprobs).sum(-1, dtype=torch.int32)
    values, ids = all_logprobs.topk(min(most, logits.shape[1]))
    floor = LOGPROB_FLOOR  # NaN stays NaN
    return logprobs[:, 0].clamp(min=floor), ranks, ids.int(), values.clamp(min=floor)
