"""Log probabilities as OpenAI's two surfaces show them.

Always finite numbers: JSON has no infinities. The text of an answer never depends on them.
"""

import math
from collections.abc import Sequence
from typing import Any

from radixserve.messages import TokenLogprobs
from radixserve.tokenizer.vocabulary import Vocabulary

FLOOR = -9999.0  # for tokens that cannot come, as other servers write it


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else FLOOR


def chat_logprobs(
    vocabulary: Vocabulary,
    tokens: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
    *,
    skip_special: bool = True,
) -> dict[str, Any]:
    """The `logprobs` of a chat choice.

    The `bytes` of its entries join to the text and the stop id or string that ended it, if any.
    """

    def entry(token: int, logprob: float) -> dict[str, Any]:
        hidden = skip_special and token in vocabulary.special_ids
        shown = b"" if hidden else vocabulary.token_bytes(token)
        return {
            "token": vocabulary.token_text(token),
            "logprob": _finite(logprob),
            "bytes": list(shown),
        }

    content = [
        entry(token, value.chosen) | {"top_logprobs": [entry(*pair) for pair in value.top]}
        for token, value in zip(tokens, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    vocabulary: Vocabulary,
    tokens: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
    offset: int,
    *,
    skip_special: bool = True,
) -> dict[str, Any]:
    """The `logprobs` of a completions choice; `offset` is where its text begins, in characters."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += characters(vocabulary, token, skip_special=skip_special)
    pairs = list(zip(tokens, logprobs, strict=True))
    return {
        "tokens": [vocabulary.token_text(token) for token in tokens],
        "token_logprobs": [_finite(value.chosen) for _, value in pairs],
        "top_logprobs": [
            {vocabulary.token_text(t): _finite(p) for t, p in (*value.top, (token, value.chosen))}
            for token, value in pairs
        ],
        "text_offset": offsets,
    }


def characters(vocabulary: Vocabulary, token: int, *, skip_special: bool = True) -> int:
    """How many characters of the text begin in `token`."""
    if skip_special and token in vocabulary.special_ids:
        return 0
    return sum(byte & 0xC0 != 0x80 for byte in vocabulary.token_bytes(token))
