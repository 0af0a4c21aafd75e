"""The body of a request for a response, and what it means in chat's terms."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from radixserve.api.errors import ApiError
from radixserve.api.fields import Count, GenerationFields
from radixserve.api.prepare import Asked
from radixserve.api.prompts import Conversation
from radixserve.api.responses.tools import Tools, chat_choice

LOGPROBS = "message.output_text.logprobs"  # what `include` may ask for; other values mean nothing


class ResponseText(Struct, frozen=True):
    """What the text must fit. `verbosity` has no effect."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponseReasoning(Struct, frozen=True):
    """`effort` is a variable of the template. There are no summaries, whatever is asked."""

    effort: str | None = None
    summary: str | None = None


class ResponseFields(GenerationFields, frozen=True, kw_only=True):
    """What OpenAI takes and, for sampling, what this server's other routes take too."""

    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None  # false: nothing is kept
    max_output_tokens: Count | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: ResponseText | None = None
    reasoning: ResponseReasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    prompt: dict[str, Any] | None = None  # OpenAI's stored prompts: refused
    max_tool_calls: int | None = None  # of tools that a server runs: there are none
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None  # this and all below: said again, without effect
    safety_identifier: str | None = None
    service_tier: str | None = None

    @property
    def limit(self) -> int:
        return self.max_output_tokens or super().limit

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    @property
    def keeps(self) -> bool:
        return self.store is not False


def with_format(fields: ResponseFields) -> ResponseFields:
    """The same with the format of its text under the name that chat has for it. ApiError 400."""
    wanted = fields.text.format if fields.text else None
    if wanted is None:
        return fields
    if fields.response_format is not None:
        text = "text.format and response_format exclude each other"
        raise ApiError(400, text, param="response_format")
    if wanted.get("type") == "json_schema":
        for key, kind in (("name", str), ("schema", dict)):
            if not isinstance(wanted.get(key), kind):
                param = f"text.format.{key}"
                raise ApiError(400, f"{param} is missing or of another type", param=param)
        wanted = {"type": "json_schema", "json_schema": wanted}
    return msgspec.structs.replace(fields, response_format=wanted)


def check_response(fields: ResponseFields) -> None:
    """What this dialect asks for and is not there. Raises ApiError 400."""
    if fields.input is None or fields.input == []:
        raise ApiError(400, "input is required", param="input")
    if (fields.n or 1) != 1:
        raise ApiError(400, "n: a response is one answer", param="n")
    for name in ("background", "prompt"):
        if getattr(fields, name):
            raise ApiError(
                400,
                f"{name} is not supported by this server",
                param=name,
                code="unsupported_parameter",
            )


def asked_of(fields: ResponseFields, tools: Tools, messages: Sequence[Mapping[str, Any]]) -> Asked:
    """The request in chat's terms. Raises ApiError 400."""
    variables = dict(fields.chat_template_kwargs or {})
    effort = fields.reasoning.effort if fields.reasoning else None
    if effort is not None:
        variables.setdefault("reasoning_effort", effort)
    offered, choice = chat_choice(tools, fields.tool_choice)
    shown = None if choice == "none" else tools.functions or None
    return Asked(
        conversation=Conversation(
            messages=messages,
            tools=shown,
            variables=variables,
            add_special_tokens=fields.add_special_tokens is not False,
        ),
        tools=offered,
        tool_choice=choice,
        several=fields.parallel_tool_calls is not False,
        strict=tools.strict,
        top_logprobs=(fields.top_logprobs or 0) if fields.wants_logprobs else -1,
    )


RENAMED = {"messages": "input", "response_format": "text.format"}


def renamed(error: ApiError) -> ApiError:
    """An error of chat's way with the field that it is about here."""
    told = error.body.error
    if told.param in RENAMED:
        new = RENAMED[told.param]
        told.message, told.param = told.message.replace(told.param, new), new
    return error
