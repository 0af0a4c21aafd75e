"""`POST /v1/completions`: prompts as text or token ids, one or many, `n` choices for each."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from msgspec import Meta

from radixserve.api.access import Record, record_of
from radixserve.api.errors import ApiError, json_response
from radixserve.api.events import DONE, EventStream, answer_while_connected, event
from radixserve.api.fields import GenerationFields, check_fields, kept_tokens, make_sampling
from radixserve.api.front import Front
from radixserve.api.generation import Decoding, Generation, Whole
from radixserve.api.logprobs import characters, completion_logprobs
from radixserve.api.openapi import takes
from radixserve.messages import Sampling, TokenLogprobs
from radixserve.tokenizer.prompt import check_prompt, encode_prompt

MAX_CHOICES = 256  # of one HTTP request


class CompletionFields(GenerationFields, frozen=True, kw_only=True):
    """The body of a request."""

    prompt: str | list[int | str | list[int]] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


def routes(front: Front) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions", **takes(CompletionFields, "prompt", streams=True))
    async def completions(request: Request) -> Response:
        """How one or many prompts go on."""
        fields = await front.parser.read(request, CompletionFields)
        prompts = check_completion(front, fields)
        completion = _Completion(front, fields, prompts, record_of(request))
        if fields.stream:
            return EventStream(completion.events())
        return await answer_while_connected(request.receive, completion.answer())

    return router


def check_completion(front: Front, fields: CompletionFields) -> list[str] | list[list[int]]:
    """What can be said without the tokens. Returns the prompts. Raises ApiError."""
    front.check_model(fields.model)
    check_fields(fields)
    return _split(fields)


async def completion_sampling(front: Front, fields: CompletionFields) -> Sampling:
    """The sampling of the first choice. Raises ApiError or InvalidRequest (400)."""
    top_logprobs = -1 if fields.logprobs is None else fields.logprobs
    ready = front.ready()
    return await front.in_thread(
        lambda: make_sampling(fields, ready, front.vocabulary, top_logprobs, front.judge.fault)
    )


async def prompts_of(
    front: Front, fields: CompletionFields, prompts: list[str] | list[list[int]]
) -> list[list[int]]:
    """The prompts as tokens, within the limits of the engine. InvalidRequest if they are not."""
    ready = front.ready()
    keep = kept_tokens(fields, ready)
    special = fields.add_special_tokens is not False

    def encode(prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, list):
            return check_prompt(prompt, ready, "prompt", keep=keep)
        return encode_prompt(
            prompt, front.vocabulary, ready, "prompt", add_special_tokens=special, keep=keep
        )

    return await front.in_thread(lambda: [encode(prompt) for prompt in prompts])


def _split(fields: CompletionFields) -> list[str] | list[list[int]]:
    """The prompts, all of one kind. Raises ApiError."""
    prompt = fields.prompt
    if prompt is None or prompt == []:
        raise ApiError(400, "prompt is required", param="prompt")
    if isinstance(prompt, str):
        return [prompt]
    ids = [part for part in prompt if isinstance(part, int)]
    texts = [part for part in prompt if isinstance(part, str)]
    lists = [part for part in prompt if isinstance(part, list)]
    if len(ids) == len(prompt):
        return [ids]
    if len(prompt) * (fields.n or 1) > MAX_CHOICES:
        raise ApiError(400, f"more than {MAX_CHOICES} choices in one request", param="prompt")
    if len(texts) == len(prompt):
        return texts
    if len(lists) == len(prompt):
        return lists
    raise ApiError(400, "prompt mixes text, token ids and lists", param="prompt")


class _Completion:
    """One request."""

    def __init__(
        self,
        front: Front,
        fields: CompletionFields,
        prompts: list[str] | list[list[int]],
        record: Record,
    ) -> None:
        self._front = front
        self._record = record
        self._fields = fields
        self._prompts = prompts

    async def _generate(self) -> Generation:
        front, fields = self._front, self._fields
        sampling = await completion_sampling(front, fields)
        prompts = await prompts_of(front, fields, self._prompts)
        return Generation(
            front,
            "cmpl",
            fields,
            prompts,
            sampling,
            decoding=Decoding(starts_text=False),
            record=self._record,
        )

    def _logprobs(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], offset: int
    ) -> dict[str, Any] | None:
        if self._fields.logprobs is None or not tokens:
            return None
        return completion_logprobs(
            self._front.vocabulary,
            tokens,
            logprobs,
            offset,
            skip_special=self._fields.skip_special,
        )

    def _characters(self, tokens: Sequence[int]) -> int:
        vocabulary, skip = self._front.vocabulary, self._fields.skip_special
        return sum(characters(vocabulary, token, skip_special=skip) for token in tokens)

    def _head(self, generation: Generation) -> dict[str, Any]:
        return {
            "id": generation.id,
            "object": "text_completion",
            "created": generation.created,
            "model": self._front.model,
            "system_fingerprint": generation.fingerprint,
        }

    async def answer(self) -> Response:
        generation = await self._generate()
        wholes = await generation.wholes()
        choices = [self._choice(index, whole) for index, whole in enumerate(wholes)]
        head = self._head(generation)
        return json_response(head | {"choices": choices, "usage": generation.usage()})

    def _choice(self, index: int, whole: Whole) -> dict[str, Any]:
        return {
            "index": index,
            "text": whole.text,
            "logprobs": self._logprobs(whole.tokens, whole.logprobs, 0),
            "finish_reason": whole.finish,
        }

    async def events(self) -> AsyncGenerator[bytes, None]:
        generation = await self._generate()
        head = self._head(generation)
        usage = generation.chunk_usage

        def chunk(index: int, text: str, **more: Any) -> bytes:
            choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
            return event(head | {"choices": [choice | more]} | usage())

        offsets = [0] * generation.num_choices
        async with aclosing(generation.pieces()) as pieces:
            async for index, piece in pieces:
                logprobs = self._logprobs(piece.tokens, piece.logprobs, offsets[index])
                offsets[index] += self._characters(piece.tokens)
                if piece.text or logprobs:
                    yield chunk(index, piece.text, logprobs=logprobs)
                if piece.finish:
                    yield chunk(index, "", finish_reason=piece.finish)
        if self._fields.include_usage:
            yield event(head | {"choices": [], "usage": generation.usage()})
        yield DONE
