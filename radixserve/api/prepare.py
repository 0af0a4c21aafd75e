"""A conversation made ready to be answered: rendered, encoded, judged. One way for all dialects."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from radixserve.api.fields import GenerationFields, kept_tokens, make_sampling
from radixserve.api.front import Front
from radixserve.api.grammar import JSON_FORMATS
from radixserve.api.prompts import ChatPrompt, Conversation, chat_prompt
from radixserve.api.reading import Reading, make_reading, or_calls, read_choice
from radixserve.messages import Ready, Sampling


class Asked(Struct, frozen=True, kw_only=True):
    """What a request asks for beside its sampling, in OpenAI's terms, tools checked."""

    conversation: Conversation
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    several: bool = True  # calls in one answer
    top_logprobs: int = -1  # -1: none at all


class Prepared(Struct, frozen=True):
    """A request, ready to be submitted."""

    prompt: ChatPrompt
    sampling: Sampling
    reading: Reading


async def prepare(front: Front, fields: GenerationFields, asked: Asked) -> Prepared:
    """Renders, encodes and judges in a thread. Raises ApiError or InvalidRequest (400)."""
    ready = front.ready()
    return await front.in_thread(lambda: _prepare(front, fields, asked, ready))


def _prepare(front: Front, fields: GenerationFields, asked: Asked, ready: Ready) -> Prepared:
    reading = make_reading(front, read_choice(asked.tools, asked.tool_choice, asked.several))
    sampling = make_sampling(fields, ready, front.vocabulary, asked.top_logprobs)
    if reading.grammar:
        # A format of the answer is one of its text, and an answer of forced calls has none.
        sampling = msgspec.structs.replace(sampling, grammar=reading.grammar)
    elif (fields.response_format or {}).get("type") in JSON_FORMATS:
        grammar = or_calls(front, reading.choice, sampling.grammar)
        sampling = msgspec.structs.replace(sampling, grammar=grammar)
    prompt = chat_prompt(front, asked.conversation, ready, kept_tokens(fields, ready))
    return Prepared(prompt, sampling, reading)
