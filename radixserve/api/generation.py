"""One HTTP request's answers from the engine: n choices for each of its prompts.

Shared by all surfaces: makes the `Submit`s, decodes what comes back, counts
usage. Leaving `pieces` early aborts what still runs.
"""

import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing

from msgspec import Struct

from radixserve.api.access import Record
from radixserve.api.errors import EXPECTED, as_api_error
from radixserve.api.fields import GenerationFields, answer_limit, nth_sampling
from radixserve.api.front import Front, new_id
from radixserve.messages import (
    INT32_BYTES,
    Namespace,
    Ready,
    Sampling,
    Scores,
    Submit,
    TokenLogprobs,
    pack,
)
from radixserve.tokenizer.answer import AnswerDecoder, Piece


class PromptTokensDetails(Struct):
    cached_tokens: int


class Usage(Struct):
    """A prompt counts once however many choices it has; `cached_tokens` are of its first choice."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Whole(Struct):
    """One choice put together, for answers that are not streamed."""

    text: str = ""
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] = []
    finish: str = ""

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.tokens += piece.tokens
        self.logprobs += piece.logprobs
        self.finish = piece.finish


class Decoding(Struct, frozen=True):
    """How answers become text: see TextDecoder."""

    starts_text: bool
    shown: Collection[int] = ()


class Generation:
    """Choice i belongs to prompt i // n. `usage` is final when `pieces` has ended."""

    def __init__(
        self,
        front: Front,
        kind: str,
        fields: GenerationFields,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        decoding: Decoding,
        record: Record,
    ) -> None:
        """`kind` begins the id. `record` is told the counts."""
        ready = front.ready()
        self.id = new_id(kind)
        self.created = int(time.time())
        self.fingerprint = f"fp_{ready.fingerprint[:12]}"
        self._fields = fields
        self._engine = front.engine
        self._prompts = prompts
        self._record = record
        self._default = front.config.default_max_tokens
        self._n = fields.n or 1
        self._cached = [0] * len(prompts)
        self._completion_tokens = 0
        self._scores: list[list[Scores]] = [[] for _ in prompts]
        self._first_scored = max(sampling.logprob_start, 1) if sampling.prompt_logprobs >= 0 else 0
        self.num_choices = len(prompts) * self._n
        self._submits = self._make_submits(ready, sampling)
        self._decoders = [
            AnswerDecoder(
                front.vocabulary,
                stops=fields.stops,
                min_tokens=sampling.min_tokens,
                starts_text=decoding.starts_text,
                include_stop=fields.include_stop,
                skip_special=fields.skip_special,
                shown=decoding.shown,
            )
            for _ in range(self.num_choices)
        ]

    def _make_submits(self, ready: Ready, sampling: Sampling) -> list[Submit]:
        fields = self._fields
        return [
            Submit(
                request_id=f"{self.id}-{index}",
                origin=self._engine.origin,
                prompt=pack(prompt),
                sampling=nth_sampling(sampling, index % self._n),
                max_tokens=answer_limit(fields, len(prompt), ready, self._default),
                namespace=Namespace(salt=fields.cache_salt or ""),
                priority=fields.priority or 0,
            )
            for index, prompt in enumerate(p for p in self._prompts for _ in range(self._n))
        ]

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece], None]:
        """(choice, its next piece) as they come. Raises ApiError."""
        record = self._record
        record.prompt_tokens = sum(len(p) for p in self._prompts)
        try:
            with self._engine.submit(self._submits, (self.id, record.id)) as stream:
                async for index, message in stream:
                    piece = self._decoders[index].push(message)
                    if piece.finish and not message.finish:
                        stream.finish(index)  # a stop string came
                    if message.scores is not None:
                        self._scores[self.prompt_of(index)].append(message.scores)
                    if self._fields.prompt_only:
                        piece = _without_answer(piece)
                    self._completion_tokens += len(piece.tokens)
                    if index % self._n == 0:
                        self._cached[self.prompt_of(index)] = piece.cached_tokens
                        record.cached_tokens = sum(self._cached)
                    yield index, piece
        except EXPECTED as error:
            raise as_api_error(error) from error

    async def wholes(self) -> list[Whole]:
        """All choices, complete. Raises ApiError."""
        wholes = [Whole() for _ in range(self.num_choices)]
        async with aclosing(self.pieces()) as pieces:
            async for index, piece in pieces:
                wholes[index].add(piece)
        return wholes

    def prompt_of(self, choice: int) -> int:
        return choice // self._n

    def is_scored(self, prompt: int) -> bool:
        """Whether all has come that is wanted of a prompt's tokens."""
        if not self._first_scored:
            return True
        come = sum(len(scores.ranks) // INT32_BYTES for scores in self._scores[prompt])
        return come >= len(self._prompts[prompt]) - self._first_scored

    def prompt_logprobs(self, prompt: int) -> list[TokenLogprobs | None]:
        """For each token of a prompt what has come; None where nothing was wanted, or came.

        Slow for long prompts: call it in a thread.
        """
        size = len(self._prompts[prompt])
        found: list[TokenLogprobs | None] = [None] * min(self._first_scored, size)
        for scores in self._scores[prompt]:
            found += scores.unpack()
        return found + [None] * (size - len(found))

    def usage(self) -> Usage:
        prompt = sum(len(p) for p in self._prompts)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=self._completion_tokens,
            total_tokens=prompt + self._completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached)),
        )

    def chunk_usage(self) -> dict[str, Usage | None]:
        """The `usage` field of a chunk: absent, null, or (if asked for) the usage so far."""
        if self._fields.continuous_usage:
            return {"usage": self.usage()}
        return {"usage": None} if self._fields.include_usage else {}


def _without_answer(piece: Piece) -> Piece:
    """The piece of a request for no tokens at all: the engine gives one, which nobody sees."""
    finish = "length" if piece.finish == "stop" else piece.finish
    return Piece("", [], (), piece.cached_tokens, finish)
