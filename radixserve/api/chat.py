"""`POST /v1/chat/completions`, as OpenAI defines it.

Tools are rendered into the template; calls in the answer are not parsed, so `tool_choice` may only
be "none" (the tools are left out) or "auto".
"""

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
from radixserve.api.generation import Generation, Whole
from radixserve.api.logprobs import chat_logprobs
from radixserve.api.openapi import takes
from radixserve.api.prompts import Conversation, chat_prompt, check_prefill, check_tools
from radixserve.messages import Sampling, TokenLogprobs


class ChatFields(GenerationFields, frozen=True, kw_only=True):
    """The body of a request."""

    messages: list[dict[str, Any]] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None  # no effect while calls are not parsed
    reasoning_effort: str | None = None  # a variable of the template
    reasoning: dict[str, Any] | None = None  # {"effort": the same}
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def conversation(self) -> Conversation:
        variables = dict(self.chat_template_kwargs or {})
        effort = self.reasoning_effort or (self.reasoning or {}).get("effort")
        if effort is not None:
            variables.setdefault("reasoning_effort", effort)
        return Conversation(
            messages=self.messages or [],
            tools=None if self.tool_choice == "none" else self.tools,
            variables=variables,
            header=self.add_generation_prompt is not False,
            prefill=bool(self.continue_final_message),
            add_special_tokens=self.add_special_tokens is not False,
        )


def routes(front: Front) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", **takes(ChatFields, "messages", streams=True))
    async def chat_completions(request: Request) -> Response:
        """The next message of a conversation."""
        fields = await front.parser.read(request, ChatFields)
        check_chat(front, fields)
        chat = _Chat(front, fields, record_of(request))
        if fields.stream:
            return EventStream(chat.events())
        return await answer_while_connected(request.receive, chat.answer())

    return router


def check_chat(front: Front, fields: ChatFields) -> None:
    """What can be said without the prompt. Raises ApiError."""
    front.check_model(fields.model)
    check_fields(fields)
    if fields.messages is None:
        raise ApiError(400, "messages is required", param="messages")
    if fields.top_logprobs and not fields.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    check_prefill(fields.add_generation_prompt, fields.continue_final_message)
    if fields.tool_choice not in (None, "none", "auto"):
        raise ApiError(
            400,
            'tool_choice: only "none" and "auto" are supported by this server',
            param="tool_choice",
            code="unsupported_parameter",
        )
    check_tools(fields.tools)


async def chat_sampling(front: Front, fields: ChatFields) -> Sampling:
    """The sampling of the first choice. Raises ApiError or InvalidRequest (400)."""
    top_logprobs = (fields.top_logprobs or 0) if fields.logprobs else -1
    ready = front.ready()
    return await front.in_thread(
        lambda: make_sampling(fields, ready, front.vocabulary, top_logprobs)
    )


async def prompt_of(front: Front, fields: ChatFields) -> list[int]:
    ready = front.ready()
    keep = kept_tokens(fields, ready)
    return await front.in_thread(lambda: chat_prompt(front, fields.conversation, ready, keep))


class _Chat:
    """One request."""

    def __init__(self, front: Front, fields: ChatFields, record: Record) -> None:
        self._front = front
        self._fields = fields
        self._record = record

    async def _generate(self) -> Generation:
        front, fields = self._front, self._fields
        sampling = await chat_sampling(front, fields)
        prompt = await prompt_of(front, fields)
        return Generation(
            front,
            "chatcmpl",
            fields,
            [prompt],
            sampling,
            starts_text=not fields.continue_final_message,
            record=self._record,
        )

    def _logprobs(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> dict[str, Any] | None:
        if not self._fields.logprobs or not tokens:
            return None
        return chat_logprobs(
            self._front.vocabulary, tokens, logprobs, skip_special=self._fields.skip_special
        )

    async def answer(self) -> Response:
        generation = await self._generate()
        wholes = await generation.wholes()
        choices = [self._choice(index, whole) for index, whole in enumerate(wholes)]
        head = self._head(generation, "chat.completion")
        return json_response(head | {"choices": choices, "usage": generation.usage()})

    def _choice(self, index: int, whole: Whole) -> dict[str, Any]:
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": whole.text,
                "refusal": None,
                "annotations": [],
            },
            "logprobs": self._logprobs(whole.tokens, whole.logprobs),
            "finish_reason": whole.finish,
        }

    def _head(self, generation: Generation, kind: str) -> dict[str, Any]:
        return {
            "id": generation.id,
            "object": kind,
            "created": generation.created,
            "model": self._front.model,
            "system_fingerprint": generation.fingerprint,
        }

    async def events(self) -> AsyncGenerator[bytes, None]:
        generation = await self._generate()
        head = self._head(generation, "chat.completion.chunk")
        usage = generation.chunk_usage

        def chunk(index: int, delta: dict[str, Any], **more: Any) -> bytes:
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            return event(head | {"choices": [choice | more]} | usage())

        begun: set[int] = set()
        async with aclosing(generation.pieces()) as pieces:
            async for index, piece in pieces:
                if index not in begun:
                    begun.add(index)
                    yield chunk(index, {"role": "assistant", "content": "", "refusal": None})
                logprobs = self._logprobs(piece.tokens, piece.logprobs)
                if piece.text or logprobs:
                    yield chunk(index, {"content": piece.text}, logprobs=logprobs)
                if piece.finish:
                    yield chunk(index, {}, finish_reason=piece.finish)
        if self._fields.include_usage:
            yield event(head | {"choices": [], "usage": generation.usage()})
        yield DONE
