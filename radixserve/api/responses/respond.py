"""Runs one request: its prompt, its answer, its place in the store."""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from itertools import count
from typing import Any

from fastapi import Response
from msgspec import Struct

from radixserve.api.access import Record
from radixserve.api.errors import EXPECTED, ApiError, as_api_error, json_response
from radixserve.api.events import event
from radixserve.api.front import Front
from radixserve.api.generation import Decoding, Generation
from radixserve.api.logprobs import chat_logprobs
from radixserve.api.prepare import Prepared, prepare
from radixserve.api.reading import Reader
from radixserve.api.responses.fields import ResponseFields, asked_of, renamed
from radixserve.api.responses.items import Item, chat_messages
from radixserve.api.responses.output import Output, StreamEvent
from radixserve.api.responses.resource import echo, ended, failed, in_progress, usage_of
from radixserve.api.responses.store import ResponseStore, Stored
from radixserve.api.responses.tools import Tools
from radixserve.tokenizer.answer import Piece
from radixserve.tokenizer.invalid import InvalidRequest

log = logging.getLogger(__name__)

Messages = Sequence[Mapping[str, Any]]

SYSTEM = ("system", "developer")
CONTINUABLE = ("completed", "incomplete")


class Given(Struct, frozen=True):
    """A request that was read: its fields, its tools and its own input items."""

    fields: ResponseFields
    tools: Tools
    items: list[Item]


class Responder:
    """One request."""

    def __init__(self, front: Front, store: ResponseStore, given: Given, record: Record) -> None:
        self._front = front
        self._store = store
        self._given = given
        self._record = record
        self._begun: dict[str, Any] = {}  # the response as its stream began

    async def answer(self) -> Response:
        last: StreamEvent = {}
        async with aclosing(self._run()) as events:
            async for said in events:
                last = said
        return json_response(last["response"])

    async def events(self) -> AsyncGenerator[bytes, None]:
        """An error after the first event ends the response as `failed`."""
        numbers = count()

        def numbered(said: StreamEvent) -> bytes:
            return event(said | {"sequence_number": next(numbers)}, said["type"])

        try:
            async with aclosing(self._run()) as events:
                async for said in events:
                    yield numbered(said)
        except Exception as error:
            if not self._begun:
                raise
            if not isinstance(error, EXPECTED):
                log.exception("a stream failed")
            response = failed(self._begun, as_api_error(error))
            yield numbered({"type": "response.failed", "response": response})

    async def _run(self) -> AsyncGenerator[StreamEvent, None]:
        """The events of the stream; the last one holds the whole response."""
        with ExitStack() as held:
            parent = self._parent(held)
            ready = await self._prepared(parent)
            generation = self._generation(ready)
            reader = ready.reader()
            async with aclosing(self._answer(generation, reader)) as events:
                async for said in events:
                    self._keep(said.get("response", {}), parent)
                    yield said

    def _parent(self, held: ExitStack) -> Stored | None:
        """What is continued, kept while this runs. ApiError 404."""
        id = self._given.fields.previous_response_id
        if not id:
            return None
        found = self._store.find(id)
        if found is None:
            raise ApiError(
                404,
                f"there is no response {id[:100]}",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        held.enter_context(self._store.hold(found))
        return found

    async def _prepared(self, parent: Stored | None) -> Prepared:
        given = self._given

        def all_messages() -> list[dict[str, Any]]:
            before = parent.items if parent else []
            return chat_messages(given.fields.instructions, [*before, *given.items])

        messages = await self._front.in_thread(all_messages)
        try:
            return await self._fitted(messages)
        except (ApiError, InvalidRequest) as error:
            raise renamed(as_api_error(error)) from error

    async def _fitted(self, messages: Messages) -> Prepared:
        """If asked, of a conversation that is too long the oldest turns are left out.

        What is left begins with a user's message, after the system's messages at the start.
        """
        given = self._given

        async def attempt(kept: Messages) -> Prepared | InvalidRequest:
            try:
                return await prepare(
                    self._front, given.fields, asked_of(given.fields, given.tools, kept)
                )
            except InvalidRequest as error:
                if error.code != "context_length_exceeded" or given.fields.truncation != "auto":
                    raise
                return error

        best = await attempt(messages)
        if isinstance(best, Prepared):
            return best
        head = next((i for i, m in enumerate(messages) if m["role"] not in SYSTEM), 0)
        cuts = [i for i, m in enumerate(messages) if m["role"] == "user" and i > head]
        while cuts:
            middle = len(cuts) // 2
            tried = await attempt([*messages[:head], *messages[cuts[middle] :]])
            if isinstance(tried, Prepared):
                best, cuts = tried, cuts[:middle]
            else:
                cuts = cuts[middle + 1 :]
        if isinstance(best, InvalidRequest):
            raise best
        return best

    def _generation(self, ready: Prepared) -> Generation:
        return Generation(
            self._front,
            "resp_",
            self._given.fields,
            [ready.prompt.tokens],
            ready.sampling,
            decoding=Decoding(True, self._front.marker_ids),
            record=self._record,
        )

    async def _answer(
        self, generation: Generation, reader: Reader
    ) -> AsyncGenerator[StreamEvent, None]:
        given, output, finish = self._given, Output(self._given.tools.names), ""
        said = echo(given.fields, given.tools, self._front.model, self._front.defaults)
        begun = in_progress(generation.id, generation.created, said)
        async with aclosing(generation.pieces()) as pieces:
            async for _, piece in pieces:
                if not self._begun:
                    self._begun = begun
                    yield {"type": "response.created", "response": begun}
                    yield {"type": "response.in_progress", "response": begun}
                logprobs = self._logprobs(piece)
                for added in output.add(reader.read(piece), len(piece.tokens), logprobs):
                    yield added
                finish = piece.finish
        for added in output.end("completed" if finish == "stop" else "incomplete"):
            yield added
        usage = usage_of(generation.usage(), output.reasoning_tokens)
        response = ended(begun, finish, output.items, usage)
        yield {"type": f"response.{response['status']}", "response": response}

    def _logprobs(self, piece: Piece) -> list[dict[str, Any]]:
        fields = self._given.fields
        if not fields.wants_logprobs:
            return []
        shown = chat_logprobs(
            self._front.vocabulary, piece.tokens, piece.logprobs, skip_special=fields.skip_special
        )
        content: list[dict[str, Any]] = shown["content"]
        return content

    def _keep(self, response: dict[str, Any], parent: Stored | None) -> None:
        """In the store, if it has ended in a way that can be continued."""
        if response.get("status") in CONTINUABLE and self._given.fields.keeps:
            self._store.add(Stored(response, self._given.items, parent))
