"""`POST /v1/completions`: prompts as text or token ids, one or many, `n` choices for each."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, cast

from fastapi import APIRouter, Request, Response
from msgspec import Meta

from radixserve.api.access import Record, record_of
from radixserve.api.echo import Echo, behind_scores, make_echo, prompt_logprobs
from radixserve.api.errors import ApiError, json_response
from radixserve.api.events import DONE, EventStream, answer_while_connected, event
from radixserve.api.fields import ScoredFields, check_fields, kept_tokens, make_sampling
from radixserve.api.front import Front
from radixserve.api.generation import Decoding, Generation, Whole
from radixserve.api.logprobs import completion_logprobs, text_offsets
from radixserve.api.openapi import takes
from radixserve.messages import Sampling, TokenLogprobs
from radixserve.tokenizer.prompt import check_prompt, encode_prompt

MAX_CHOICES = 256  # of one HTTP request


class CompletionFields(ScoredFields, frozen=True, kw_only=True):
    """The body of a request."""

    prompt: str | list[int | str | list[int]] | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None  # 0: only with `echo`
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None  # the prompt comes before its answer

    @property
    def prompt_only(self) -> bool:
        return bool(self.echo) and self.max_tokens == 0 and self.max_completion_tokens is None

    @property
    def limit(self) -> int:
        return 1 if self.prompt_only else super().limit

    @property
    def prompt_best(self) -> int:
        echoed = self.logprobs if self.echo and self.logprobs is not None else -1
        return max(echoed, super().prompt_best)


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
    fields.check_scored()
    if fields.max_tokens == 0 and not fields.echo:
        raise ApiError(400, "max_tokens: 0 needs echo: true", param="max_tokens")
    return _split(fields)


async def completion_sampling(front: Front, fields: CompletionFields) -> Sampling:
    """The sampling of the first choice. Raises ApiError or InvalidRequest (400)."""
    top_logprobs = -1 if fields.logprobs is None else fields.logprobs
    ready = front.ready()
    vocabulary, judge, defaults = front.vocabulary, front.judge.fault, front.defaults
    return await front.in_thread(
        lambda: make_sampling(fields, ready, vocabulary, top_logprobs, judge, defaults)
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
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [cast(list[int], prompt)]
    if len(prompt) * (fields.n or 1) > MAX_CHOICES:
        raise ApiError(400, f"more than {MAX_CHOICES} choices in one request", param="prompt")
    if kinds in ({str}, {list}):
        return cast(list[str] | list[list[int]], prompt)
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
        self._tokens: list[list[int]] = []  # of the prompts
        self._echoes: list[Echo] = []  # of the prompts, if they are to be repeated
        self._scored: dict[int, Shown] = {}  # by prompt, once all is known

    async def _generate(self) -> Generation:
        front, fields = self._front, self._fields
        sampling = await completion_sampling(front, fields)
        self._tokens = await prompts_of(front, fields, self._prompts)
        if fields.echo:
            self._echoes = await front.in_thread(self._make_echoes)
        return Generation(
            front,
            "cmpl",
            fields,
            self._tokens,
            sampling,
            decoding=Decoding(starts_text=False),
            record=self._record,
        )

    def _make_echoes(self) -> list[Echo]:
        prompts: Sequence[str | list[int]] = self._prompts
        cut = self._fields.truncate_prompt_tokens is not None
        return [
            make_echo(self._front.vocabulary, prompt, tokens, cut=cut)
            for prompt, tokens in zip(prompts, self._tokens, strict=True)
        ]

    async def _shown(self, generation: Generation, choice: int) -> "Shown":
        """What the answer says of a choice's prompt, all of which is known."""
        fields = self._fields
        if not self._echoes and fields.prompt_logprobs is None and not fields.return_token_ids:
            return Shown()
        prompt = generation.prompt_of(choice)
        if prompt not in self._scored:
            make = partial(self._make_shown, generation, prompt)
            self._scored[prompt] = await self._front.in_thread(make)
        return self._scored[prompt]

    def _make_shown(self, generation: Generation, prompt: int) -> "Shown":
        fields, vocabulary = self._fields, self._front.vocabulary
        found = generation.prompt_logprobs(prompt)
        text, logprobs = "", None
        more: dict[str, Any] = {}
        if self._echoes:
            text = self._echoes[prompt].text
            if fields.logprobs is not None:
                name = fields.token_name(vocabulary)
                logprobs = self._echoes[prompt].logprobs(name, found, fields.logprobs)
        if (best := fields.prompt_logprobs) is not None:
            shown = prompt_logprobs(vocabulary, self._tokens[prompt], found, best)
            more["prompt_logprobs"] = shown
        if fields.return_token_ids:
            more["prompt_token_ids"] = self._tokens[prompt]
        return Shown(text, logprobs, more)

    def _ids(self, tokens: Sequence[int]) -> dict[str, Any]:
        """The field that tells an answer's tokens, if they are wanted."""
        return {"token_ids": tokens} if self._fields.return_token_ids else {}

    def _logprobs(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], offset: int
    ) -> tuple[dict[str, Any] | None, int]:
        """Of tokens whose text begins at `offset`, and where that of the next ones will."""
        if self._fields.logprobs is None or not tokens:
            return None, offset
        vocabulary, skip = self._front.vocabulary, self._fields.skip_special
        *offsets, end = text_offsets(vocabulary, tokens, offset, skip_special=skip)
        name = self._fields.token_name(vocabulary)
        return completion_logprobs(name, tokens, logprobs, offsets), end

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
        choices = [
            self._choice(index, whole, await self._shown(generation, index))
            for index, whole in enumerate(wholes)
        ]
        head = self._head(generation)
        return json_response(head | {"choices": choices, "usage": generation.usage()})

    def _choice(self, index: int, whole: Whole, shown: "Shown") -> dict[str, Any]:
        logprobs, _ = self._logprobs(whole.tokens, whole.logprobs, len(shown.text))
        parts = [part for part in (shown.logprobs, logprobs) if part is not None]
        return {
            "index": index,
            "text": shown.text + whole.text,
            "logprobs": _joined(parts),
            "finish_reason": whole.finish,
            **shown.more,
            **self._ids(whole.tokens),
        }

    async def events(self) -> AsyncGenerator[bytes, None]:
        generation = await self._generate()
        head = self._head(generation)
        usage = generation.chunk_usage

        def chunk(index: int, text: str, **more: Any) -> bytes:
            choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
            return event(head | {"choices": [choice | more]} | usage())

        offsets: dict[int, int] = {}
        async with aclosing(behind_scores(generation)) as pieces:
            async for index, piece in pieces:
                if index not in offsets:
                    shown = await self._shown(generation, index)
                    offsets[index] = len(shown.text)
                    if self._echoes or shown.more:
                        yield chunk(index, shown.text, logprobs=shown.logprobs, **shown.more)
                logprobs, offsets[index] = self._logprobs(
                    piece.tokens, piece.logprobs, offsets[index]
                )
                ids = self._ids(piece.tokens) if piece.tokens else {}
                if piece.text or logprobs or ids:
                    yield chunk(index, piece.text, logprobs=logprobs, **ids)
                if piece.finish:
                    yield chunk(index, "", finish_reason=piece.finish)
        if self._fields.include_usage:
            yield event(head | {"choices": [], "usage": generation.usage()})
        yield DONE


class Shown(NamedTuple):
    """What an answer says of its prompt."""

    text: str = ""  # comes before the answer's
    logprobs: dict[str, Any] | None = None  # so do these
    more: Mapping[str, Any] = MappingProxyType({})  # further fields of the choice


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The columns of `logprobs` one behind the other."""
    if not parts:
        return None
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}
