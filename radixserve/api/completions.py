"""`POST /v1/completions`: prompts as text or token ids, one or many, `n` choices for each."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from msgspec import Meta

from radixserve.api.body import read_body
from radixserve.api.errors import ApiError, json_response
from radixserve.api.events import DONE, EventStream, answer_while_connected, event
from radixserve.api.fields import GenerationFields, check_fields, make_sampling
from radixserve.api.front import Front
from radixserve.api.generation import Generation, Whole
from radixserve.api.grammar import make_grammar
from radixserve.api.logprobs import characters, completion_logprobs
from radixserve.messages import Ready, TokenLogprobs
from radixserve.tokenizer.prompt import check_prompt, encode_prompt

MAX_CHOICES = 256  # of one HTTP request


class CompletionFields(GenerationFields, frozen=True, kw_only=True):
    """The body of a request."""

    prompt: str | list[int | str | list[int]] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


def routes(front: Front) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        fields = front.parser.parse(await read_body(request), CompletionFields)
        front.check_model(fields.model)
        check_fields(fields)
        completion = _Completion(front, fields, _split(fields))
        if fields.stream:
            return EventStream(completion.events())
        return await answer_while_connected(request.receive, completion.answer())

    return router


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
        self, front: Front, fields: CompletionFields, prompts: list[str] | list[list[int]]
    ) -> None:
        self._front = front
        self._fields = fields
        self._prompts = prompts

    async def _generate(self) -> Generation:
        front, fields = self._front, self._fields
        ready = front.ready()
        top_logprobs = -1 if fields.logprobs is None else fields.logprobs
        grammar = await front.in_thread(lambda: make_grammar(fields))
        sampling = make_sampling(fields, ready, front.vocabulary.eos_ids, top_logprobs, grammar)
        prompts = await front.in_thread(lambda: [self._encode(p, ready) for p in self._prompts])
        return Generation(front, "cmpl", fields, prompts, sampling, starts_text=False)

    def _encode(self, prompt: str | list[int], ready: Ready) -> list[int]:
        if isinstance(prompt, str):
            return encode_prompt(prompt, self._front.vocabulary, ready, "prompt")
        return check_prompt(prompt, ready, "prompt")

    def _logprobs(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], offset: int
    ) -> dict[str, Any] | None:
        if self._fields.logprobs is None or not tokens:
            return None
        return completion_logprobs(self._front.vocabulary, tokens, logprobs, offset)

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
                offsets[index] += sum(characters(self._front.vocabulary, t) for t in piece.tokens)
                if piece.text or logprobs:
                    yield chunk(index, piece.text, logprobs=logprobs)
                if piece.finish:
                    yield chunk(index, "", finish_reason=piece.finish)
        if self._fields.include_usage:
            yield event(head | {"choices": [], "usage": generation.usage()})
        yield DONE
