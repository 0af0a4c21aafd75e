"""A conversation made ready to be answered: rendered, encoded, judged. One way for all dialects."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from radixserve.api.constraint import answer_grammar
from radixserve.api.fields import GenerationFields, kept_tokens, make_sampling
from radixserve.api.front import Front
from radixserve.api.history.ahead import compute_ahead, may_differ
from radixserve.api.history.recorder import Recorder
from radixserve.api.history.store import Said
from radixserve.api.prompts import ChatPrompt, Conversation, chat_prompt
from radixserve.api.reading import Listener, Reader, Reading, make_reading, read_choice
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
    """A request, ready to be submitted. `listener`: makes who hears one of its answers."""

    prompt: ChatPrompt
    sampling: Sampling
    reading: Reading
    listener: Callable[[], Listener] | None = None

    def reader(self) -> Reader:
        """For one choice."""
        listen = self.listener() if self.listener else None
        return self.reading.reader(self.prompt.end, listen)


async def prepare(front: Front, fields: GenerationFields, asked: Asked) -> Prepared:
    """Renders, encodes and judges in a thread. Raises ApiError or InvalidRequest (400)."""
    ready = front.ready()
    return await front.in_thread(lambda: _prepare(front, fields, asked, ready))


def _prepare(front: Front, fields: GenerationFields, asked: Asked, ready: Ready) -> Prepared:
    choice = read_choice(asked.tools, asked.tool_choice, asked.several, asked.strict)
    reading = make_reading(front, choice)
    sampling = make_sampling(
        fields, ready, front.vocabulary, asked.top_logprobs, front.judge.fault, front.defaults
    )
    salt, chat = fields.cache_salt or "", asked.conversation
    prompt = chat_prompt(front, chat, ready, kept_tokens(fields, ready), salt)
    grammar = answer_grammar(front, fields, sampling.grammar, reading, prompt.end)
    sampling = replace(sampling, grammar=grammar)
    return Prepared(prompt, sampling, reading, _listener(front, reading, prompt, chat, salt))


def _listener(
    front: Front, reading: Reading, prompt: ChatPrompt, chat: Conversation, salt: str
) -> Callable[[], Listener] | None:
    """Who remembers the answers. Calls forced in another form than the model's are not: their
    tokens would teach it that form.
    """
    foreign = reading.choice.forced and reading.format is not front.format
    if front.splicer is None or prompt.place is None or foreign:
        return None

    def ended(said: Said) -> None:
        front.in_background(partial(compute_ahead, front, chat, salt, said))

    then = ended if may_differ(front) else None
    return partial(Recorder, front.splicer.store, prompt.place, then)
