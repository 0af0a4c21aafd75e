"""`POST /v1/chat/completions`, as OpenAI defines it.

Tools are rendered into the template; calls in the answer are not parsed, so `tool_choice` may only
be "none" (the tools are left out) or "auto".
"""

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
from radixserve.api.logprobs import chat_logprobs
from radixserve.messages import Ready, TokenLogprobs
from radixserve.tokenizer.conversation import conversation
from radixserve.tokenizer.prompt import encode_prompt


class ChatFields(GenerationFields, frozen=True, kw_only=True):
    """The body of a request."""

    messages: list[dict[str, Any]] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None  # no effect while calls are not parsed
    reasoning_effort: str | None = None  # a variable of the template
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def routes(front: Front) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        fields = front.parser.parse(await read_body(request), ChatFields)
        _check(front, fields)
        chat = _Chat(front, fields)
        if fields.stream:
            return EventStream(chat.events())
        return await answer_while_connected(request.receive, chat.answer())

    return router


def _check(front: Front, fields: ChatFields) -> None:
    """What can be said without the prompt. Raises ApiError."""
    front.check_model(fields.model)
    check_fields(fields)
    if fields.messages is None:
        raise ApiError(400, "messages is required", param="messages")
    if fields.top_logprobs and not fields.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    if fields.continue_final_message and fields.add_generation_prompt:
        raise ApiError(
            400,
            "continue_final_message and add_generation_prompt exclude each other",
            param="continue_final_message",
        )
    _check_tools(fields)


def _check_tools(fields: ChatFields) -> None:
    if fields.tool_choice not in (None, "none", "auto"):
        raise ApiError(
            400,
            'tool_choice: only "none" and "auto" are supported by this server',
            param="tool_choice",
            code="unsupported_parameter",
        )
    for i, tool in enumerate(fields.tools or []):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise ApiError(400, f"tools[{i}] is not a function", param=f"tools[{i}]")
        if not isinstance(function.get("name"), str):
            raise ApiError(400, f"tools[{i}].function.name is missing", param=f"tools[{i}]")


class _Chat:
    """One request."""

    def __init__(self, front: Front, fields: ChatFields) -> None:
        self._front = front
        self._fields = fields

    async def _generate(self) -> Generation:
        front, fields = self._front, self._fields
        ready = front.ready()
        top_logprobs = (fields.top_logprobs or 0) if fields.logprobs else -1
        grammar = await front.in_thread(lambda: make_grammar(fields))
        sampling = make_sampling(fields, ready, front.vocabulary.eos_ids, top_logprobs, grammar)
        prompt = await front.in_thread(lambda: self._prompt(ready))
        starts_text = not fields.continue_final_message
        return Generation(front, "chatcmpl", fields, [prompt], sampling, starts_text=starts_text)

    def _prompt(self, ready: Ready) -> list[int]:
        """Renders and encodes; runs in a thread."""
        fields, template = self._fields, self._front.template
        if template is None:
            raise ApiError(
                400,
                "this model has no chat template: use /v1/completions,"
                " or start the server with --chat-template FILE",
                code="no_chat_template",
            )
        messages = conversation(fields.messages or [], knows_developer=template.knows_developer)
        variables = dict(fields.chat_template_kwargs or {})
        if fields.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", fields.reasoning_effort)
        tools = None if fields.tool_choice == "none" else fields.tools
        if fields.continue_final_message:
            text = template.render_prefill(messages, tools=tools, variables=variables)
        else:
            header = fields.add_generation_prompt is not False
            text = template.render(
                messages, tools=tools, variables=variables, add_generation_prompt=header
            )
        return encode_prompt(text, self._front.vocabulary, ready, "messages")

    def _logprobs(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> dict[str, Any] | None:
        if not self._fields.logprobs or not tokens:
            return None
        return chat_logprobs(self._front.vocabulary, tokens, logprobs)

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
