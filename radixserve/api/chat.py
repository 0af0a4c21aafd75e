"""`POST /v1/chat/completions`, as OpenAI defines it.

Tools are rendered into the template; reasoning and tool calls are read out of the answer as the
model writes them (`reading.py`). `tool_choice` "required" or a name forces calls by a grammar.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from msgspec import Meta

from radixserve.api.access import Record, record_of
from radixserve.api.errors import ApiError, json_response
from radixserve.api.events import DONE, EventStream, answer_while_connected, event
from radixserve.api.fields import GenerationFields, check_fields
from radixserve.api.front import Front
from radixserve.api.generation import Decoding, Generation, Whole
from radixserve.api.logprobs import chat_logprobs
from radixserve.api.openapi import takes
from radixserve.api.prepare import Asked, prepare
from radixserve.api.prompts import Conversation, check_prefill, check_tools
from radixserve.api.reading import Message, Reader, delta_of
from radixserve.messages import TokenLogprobs


class ChatFields(GenerationFields, frozen=True, kw_only=True):
    """The body of a request."""

    messages: list[dict[str, Any]] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None  # false: of forced calls one, no more
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

    @property
    def asked(self) -> Asked:
        return Asked(
            conversation=self.conversation,
            tools=self.tools,
            tool_choice=self.tool_choice,
            several=self.parallel_tool_calls is not False,
            top_logprobs=(self.top_logprobs or 0) if self.logprobs else -1,
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
    check_tools(fields.tools)


class _Chat:
    """One request."""

    def __init__(self, front: Front, fields: ChatFields, record: Record) -> None:
        self._front = front
        self._fields = fields
        self._record = record
        self._named = False

    async def _begin(self) -> tuple[Generation, list[Reader]]:
        """The generation, and who reads each of its choices."""
        front, fields = self._front, self._fields
        ready = await prepare(front, fields, fields.asked)
        generation = Generation(
            front,
            "chatcmpl",
            fields,
            [ready.prompt.tokens],
            ready.sampling,
            decoding=Decoding(not fields.continue_final_message, front.marker_ids),
            record=self._record,
        )
        self._named = ready.reading.choice.named
        readers = [ready.reader() for _ in range(generation.num_choices)]
        return generation, readers

    def _logprobs(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> dict[str, Any] | None:
        if not self._fields.logprobs or not tokens:
            return None
        return chat_logprobs(
            self._front.vocabulary, tokens, logprobs, skip_special=self._fields.skip_special
        )

    async def answer(self) -> Response:
        generation, readers = await self._begin()
        messages = [Message() for _ in readers]
        wholes = [Whole() for _ in readers]
        async with aclosing(generation.pieces()) as pieces:
            async for index, piece in pieces:
                wholes[index].add(piece)
                messages[index].add(readers[index].read(piece))
        choices = [
            {
                "index": index,
                "message": message.as_json(),
                "logprobs": self._logprobs(whole.tokens, whole.logprobs),
                "finish_reason": self._finish(whole.finish, reader),
            }
            for index, (message, whole, reader) in enumerate(
                zip(messages, wholes, readers, strict=True)
            )
        ]
        head = self._head(generation, "chat.completion")
        return json_response(head | {"choices": choices, "usage": generation.usage()})

    def _finish(self, finish: str, reader: Reader) -> str:
        """OpenAI's reason: an answer that calls tools of its own accord says so."""
        return "tool_calls" if reader.called and finish == "stop" and not self._named else finish

    def _head(self, generation: Generation, kind: str) -> dict[str, Any]:
        return {
            "id": generation.id,
            "object": kind,
            "created": generation.created,
            "model": self._front.model,
            "system_fingerprint": generation.fingerprint,
        }

    async def events(self) -> AsyncGenerator[bytes, None]:
        generation, readers = await self._begin()
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
                deltas = [delta for e in readers[index].read(piece) if (delta := delta_of(e))]
                for delta in deltas or [{"content": ""}] * (logprobs is not None):
                    yield chunk(index, delta, logprobs=logprobs)
                    logprobs = None
                if piece.finish:
                    yield chunk(index, {}, finish_reason=self._finish(piece.finish, readers[index]))
        if self._fields.include_usage:
            yield event(head | {"choices": [], "usage": generation.usage()})
        yield DONE
