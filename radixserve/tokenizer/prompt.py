"""Prompts as token ids within the limits of the engine. Slow for long texts: call it in a thread.

Everything is checked here, before it can reach the scheduler or the worker.
"""

from collections.abc import Sequence

from radixserve.messages import Ready
from radixserve.tokenizer.invalid import InvalidRequest
from radixserve.tokenizer.vocabulary import Parts, Vocabulary

MAX_TEXT_BYTES = 4 << 20  # of a text whose tokens need not fit the context: encoding is slow


def encode_prompt(
    text: str | Parts,
    vocabulary: Vocabulary,
    ready: Ready,
    param: str,
    *,
    add_special_tokens: bool = True,
    keep: int | None = None,
) -> list[int]:
    """Ids of a prompt's text, with exactly one BOS where the model has one.

    The one way from text to prompt for all surfaces. A text that is too long whatever its tokens
    are is refused by its bytes, before the slow encoding. `keep`: see `check_prompt`.
    """
    if keep is None:
        least = _text_bytes(text) // vocabulary.longest_token
        if least >= ready.max_total_tokens:
            raise too_long(f"at least {least}", ready, param)
        return check_prompt(vocabulary.encode(text, add_special_tokens), ready, param)
    ids = encode_any(text, vocabulary, param, add_special_tokens=add_special_tokens)
    return check_prompt(ids, ready, param, keep=keep)


def encode_any(
    text: str | Parts, vocabulary: Vocabulary, param: str, *, add_special_tokens: bool = True
) -> list[int]:
    """Ids of a text that may be longer than the context."""
    if _text_bytes(text) > MAX_TEXT_BYTES:
        raise InvalidRequest(f"the text is longer than {MAX_TEXT_BYTES >> 20} MiB", param)
    return vocabulary.encode(text, add_special_tokens)


def _text_bytes(text: str | Parts) -> int:
    parts = [text] if isinstance(text, str) else text
    return sum(len(part.encode()) for part in parts if isinstance(part, str))


def check_prompt(
    ids: Sequence[int], ready: Ready, param: str, *, keep: int | None = None
) -> list[int]:
    """`ids`, if the engine can take them as a prompt. InvalidRequest if not.

    `keep`: of more tokens than that only the last ones count; None: all do.
    """
    if keep is not None:
        ids = ids[-keep:]
    if not ids:
        raise InvalidRequest("the prompt is empty", param)
    for token in (min(ids), max(ids)):
        check_id(token, ready, param)
    if len(ids) >= ready.max_total_tokens:
        raise too_long(str(len(ids)), ready, param)
    return list(ids)


def check_id(token: int, ready: Ready, param: str) -> None:
    if not 0 <= token < ready.vocab_size:
        raise InvalidRequest(
            f"{param}: token id {token} is outside the vocabulary of {ready.vocab_size}", param
        )


def too_long(tokens: str, ready: Ready, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"This model's maximum context length is {ready.max_total_tokens} tokens, prompt and answer"
        f" together, but the prompt has {tokens} tokens. Please shorten it.",
        param,
        "context_length_exceeded",
    )
