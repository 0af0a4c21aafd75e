"""Prompts as token ids within the limits of the engine. Slow for long texts: call it in a thread.

Everything is checked here, before it can reach the scheduler or the worker.
"""

from collections.abc import Sequence

from radixserve.messages import Ready
from radixserve.tokenizer.invalid import InvalidRequest
from radixserve.tokenizer.vocabulary import Vocabulary


def encode_prompt(text: str, vocabulary: Vocabulary, ready: Ready, param: str) -> list[int]:
    """Ids of a prompt's text, with exactly one BOS where the model has one.

    The one way from text to prompt for all surfaces. A text that is too long whatever its tokens
    are is refused by its bytes, before the slow encoding.
    """
    least = len(text.encode()) // vocabulary.longest_token
    if least >= ready.max_total_tokens:
        raise too_long(f"at least {least}", ready, param)
    return check_prompt(vocabulary.encode(text), ready, param)


def check_prompt(ids: Sequence[int], ready: Ready, param: str) -> list[int]:
    """`ids`, if the engine can take them as a prompt. InvalidRequest if not."""
    if not ids:
        raise InvalidRequest("the prompt is empty", param)
    for token in (min(ids), max(ids)):
        if not 0 <= token < ready.vocab_size:
            raise InvalidRequest(
                f"token id {token} is outside the vocabulary of {ready.vocab_size}", param
            )
    if len(ids) >= ready.max_total_tokens:
        raise too_long(str(len(ids)), ready, param)
    return list(ids)


def too_long(tokens: str, ready: Ready, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"This model's maximum context length is {ready.max_total_tokens} tokens, prompt and answer"
        f" together, but the prompt has {tokens} tokens. Please shorten it.",
        param,
        "context_length_exceeded",
    )
