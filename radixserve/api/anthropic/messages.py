"""`POST /v1/messages` and `/v1/messages/count_tokens`, as Anthropic defines them."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from radixserve.api.access import Record, record_of
from radixserve.api.anthropic.blocks import Blocks, Data, Fold
from radixserve.api.anthropic.conversation import (
    openai_choice,
    read_conversation,
    read_tools,
    strict_tools,
    takes_late_system,
)
from radixserve.api.anthropic.errors import MessagesErrorBody, error_event
from radixserve.api.anthropic.fields import MessagesFields, PromptFields
from radixserve.api.errors import json_response
from radixserve.api.events import EventStream, answer_while_connected, event
from radixserve.api.fields import GenerationFields
from radixserve.api.front import Front
from radixserve.api.generation import Decoding, Generation
from radixserve.api.openapi import takes
from radixserve.api.prepare import Asked, prepare
from radixserve.api.prompts import chat_tokens
from radixserve.api.reading import Reader
from radixserve.tokenizer.answer import Piece

log = logging.getLogger(__name__)

PATH = "/v1/messages"
MAX_LOGGED_TYPES = 100
UNCOUNTED = {  # the rest of a message's usage
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    "inference_geo": None,
    "service_tier": "standard",
}


def routes(front: Front) -> APIRouter:
    router = APIRouter()
    asker = _Asker(front)
    faults = MessagesErrorBody

    @router.post(
        PATH, **takes(MessagesFields, "messages", "max_tokens", streams=True, faults=faults)
    )
    async def messages(request: Request) -> Response:
        """The next message of a conversation, in Anthropic's form."""
        fields = await front.parser.read(request, MessagesFields)
        front.check_model(fields.model)
        fields.check()
        record = record_of(request)
        answer = _Answer(front, asker, fields, record)
        if fields.stream:
            return EventStream(answer.events(), partial(error_event, request_id=record.id))
        return await answer_while_connected(request.receive, answer.whole())

    @router.post(f"{PATH}/count_tokens", **takes(PromptFields, "messages", faults=faults))
    async def count_tokens(request: Request) -> Response:
        """How many tokens a conversation has; it may be longer than the context."""
        fields = await front.parser.read(request, PromptFields)
        front.check_model(fields.model)
        fields.check()
        front.ready()
        count = await front.in_thread(
            lambda: len(
                chat_tokens(front, asker.asked(fields).conversation, fields.cache_salt or "")
            )
        )
        record_of(request).prompt_tokens = count
        return json_response({"input_tokens": count})

    return router


class _Asker:
    """Knows the model's template, and which tools of Anthropic's it has said to be left out."""

    def __init__(self, front: Front) -> None:
        self._judge = front.judge.fault
        self._unreadable = front.unreadable
        self._late_system = front.template is not None and takes_late_system(front.template)
        self._keep_nonces = front.config.keep_known_nonces
        self._left_out: set[str] = set()

    def asked(self, fields: PromptFields) -> Asked:
        """What a request asks for, in the pipeline's terms. Raises ApiError 400."""
        tools, foreign = read_tools(fields.tools or ())
        for kind in foreign:
            self._leave_out(kind)
        conversation = read_conversation(
            fields,
            tools,
            self._unreadable,
            late_system=self._late_system,
            keep_nonces=self._keep_nonces,
        )
        return Asked(
            conversation=conversation,
            tools=tools,
            tool_choice=openai_choice(fields.tool_choice, tools),
            several=fields.several,
            strict=strict_tools(fields.tools or ()),
        )

    def read(self, fields: MessagesFields) -> tuple[GenerationFields, Asked]:
        """Slow where the answer must fit a schema: call it in a thread. Raises ApiError 400."""
        return fields.generation(self._judge), self.asked(fields)

    def _leave_out(self, kind: str) -> None:
        if kind not in self._left_out and len(self._left_out) < MAX_LOGGED_TYPES:
            self._left_out.add(kind)
            log.info("leaving out tools of type %.50r: only Anthropic runs them (said once)", kind)


class _Answer:
    """One request."""

    def __init__(self, front: Front, asker: _Asker, fields: MessagesFields, record: Record) -> None:
        self._front = front
        self._asker = asker
        self._fields = fields
        self._record = record

    async def whole(self) -> Response:
        fold = Fold()
        async with aclosing(self._data()) as items:
            async for data in items:
                fold.add(data)
        return json_response(fold.message)

    async def events(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._data()) as items:
            async for data in items:
                yield event(data, data["type"])

    async def _data(self) -> AsyncGenerator[Data, None]:
        """The data of all events. Raises ApiError or InvalidRequest."""
        generation, reader = await self._begin()
        blocks = Blocks()
        begun = False
        async with aclosing(generation.pieces()) as pieces:
            async for _, piece in pieces:
                if not begun:
                    begun = True
                    yield {"type": "message_start", "message": self._head(generation)}
                    yield {"type": "ping"}
                for data in blocks.add(reader.read(piece)):
                    yield data
                if piece.finish:
                    for data in blocks.close():
                        yield data
                    yield _end(piece, reader, generation)
        yield {"type": "message_stop"}

    async def _begin(self) -> tuple[Generation, Reader]:
        front = self._front
        fields, asked = await front.in_thread(partial(self._asker.read, self._fields))
        ready = await prepare(front, fields, asked)
        generation = Generation(
            front,
            "msg_",
            fields,
            [ready.prompt.tokens],
            ready.sampling,
            decoding=Decoding(not asked.conversation.prefill, front.marker_ids),
            record=self._record,
        )
        return generation, ready.reader()

    def _head(self, generation: Generation) -> dict[str, Any]:
        """The message as it begins."""
        return {
            "id": generation.id,
            "type": "message",
            "role": "assistant",
            "model": self._front.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": _counts(generation) | UNCOUNTED,
        }


def _end(piece: Piece, reader: Reader, generation: Generation) -> Data:
    delta = {
        "stop_reason": _stop_reason(piece, reader),
        "stop_sequence": piece.stop or None,
        "stop_details": None,
        "container": None,
    }
    return {"type": "message_delta", "delta": delta, "usage": _counts(generation)}


def _stop_reason(piece: Piece, reader: Reader) -> str:
    """An aborted answer was cut off as one that met its limit."""
    if piece.stop:
        return "stop_sequence"
    if piece.finish != "stop":
        return "max_tokens"
    return "tool_use" if reader.called else "end_turn"


def _counts(generation: Generation) -> dict[str, Any]:
    """The tokens so far. Caching is automatic: hits are read, and nothing is billed as created."""
    usage = generation.usage()
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": None,
        "server_tool_use": None,
    }
