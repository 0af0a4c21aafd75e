"""A conversation made ready to be answered: rendered, encoded, judged. One way for all dialects."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from radixserve.api.errors import ApiError
from radixserve.api.fields import GenerationFields, kept_tokens, make_sampling
from radixserve.api.front import Front
from radixserve.api.prompts import ChatPrompt, Conversation, chat_prompt
from radixserve.api.reading import Reading, make_reading, read_choice, strict_grammar
from radixserve.messages import Ready, Sampling


class Asked(Struct, frozen=True, kw_only=True):
    """What a request asks for beside its sampling, in OpenAI's terms, tools checked."""

    conversation: Conversation
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    several: bool = True  # calls in one answer
    strict: Collection[str] = ()  # tools that are, beside those that say so themselves
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
    choice = read_choice(asked.tools, asked.tool_choice, asked.several, asked.strict)
    reading = make_reading(front, choice)
    sampling = make_sampling(fields, ready, front.vocabulary, asked.top_logprobs)
    if reading.grammar and sampling.grammar:
        text = "tool_choice and a format of the answer exclude each other"
        raise ApiError(400, text, param="tool_choice")
    prompt = chat_prompt(front, asked.conversation, ready, kept_tokens(fields, ready))
    grammar = sampling.grammar or reading.grammar or strict_grammar(front, reading, prompt.end)
    sampling = msgspec.structs.replace(sampling, grammar=grammar)
    return Prepared(prompt, sampling, reading)
