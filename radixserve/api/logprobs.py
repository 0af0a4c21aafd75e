"""Log probabilities as OpenAI's two surfaces show them.

Always finite numbers: JSON has no infinities. The text of an answer never depends on them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from radixserve.messages import TokenLogprobs
from radixserve.tokenizer.vocabulary import Vocabulary

Name = Callable[[int], str]
FLOOR = -9999.0  # for tokens that cannot come, as other servers write it


def finite(logprob: float) -> float:
    """A log probability as JSON can have it."""
    return logprob if math.isfinite(logprob) else FLOOR


def chat_logprobs(
    vocabulary: Vocabulary,
    tokens: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
    *,
    skip_special: bool = True,
    name: Name | None = None,
) -> dict[str, Any]:
    """The `logprobs` of a chat choice; `name`: how tokens are called, None: by their text.

    The `bytes` of its entries join to the text and the stop id or string that ended it, if any.
    """

    name = name or vocabulary.token_text

    def entry(token: int, logprob: float) -> dict[str, Any]:
        hidden = skip_special and token in vocabulary.special_ids
        shown = b"" if hidden else vocabulary.token_bytes(token)
        return {
            "token": name(token),
            "logprob": finite(logprob),
            "bytes": list(shown),
        }

    content = [
        entry(token, value.chosen) | {"top_logprobs": [entry(*pair) for pair in value.top]}
        for token, value in zip(tokens, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    name: Name,
    tokens: Sequence[int],
    logprobs: Sequence[TokenLogprobs | None],
    offsets: Sequence[int],
) -> dict[str, Any]:
    """The `logprobs` of a completions choice; `offsets`: where in its text each token begins.

    `name`: how tokens are called. None: nothing is known of the token, as of a prompt's first.
    """

    def best(token: int, value: TokenLogprobs) -> dict[str, float]:
        pairs = (*value.top, (token, value.chosen))
        return {name(t): finite(p) for t, p in pairs}

    pairs = list(zip(tokens, logprobs, strict=True))
    return {
        "tokens": [name(token) for token in tokens],
        "token_logprobs": [value and finite(value.chosen) for _, value in pairs],
        "top_logprobs": [value and best(token, value) for token, value in pairs],
        "text_offset": list(offsets),
    }


def text_offsets(
    vocabulary: Vocabulary, tokens: Sequence[int], start: int, *, skip_special: bool
) -> list[int]:
    """Where each of `tokens` begins in a text, in characters, and where the next one will."""
    offsets = [start]
    for token in tokens:
        offsets.append(offsets[-1] + characters(vocabulary, token, skip_special=skip_special))
    return offsets


def characters(vocabulary: Vocabulary, token: int, *, skip_special: bool = True) -> int:
    """How many characters of the text begin in `token`."""
    if skip_special and token in vocabulary.special_ids:
        return 0
    return sum(byte & 0xC0 != 0x80 for byte in vocabulary.token_bytes(token))
