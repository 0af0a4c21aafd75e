"""What a request to the Messages API may say, and what that is in the pipeline's own terms.

null is the same as absent. Accepted without effect, since no answer depends on them here:
`cache_control` anywhere, `metadata`, `service_tier`, `context_management` and a thinking budget.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from radixserve.api.errors import ApiError
from radixserve.api.fields import Count, GenerationFields, Share, check_stops
from radixserve.api.grammar import Judge, StructuredOutputs, json_grammar, judged


class Turn(Struct, frozen=True):
    """One message; blocks are read by `conversation.py`."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class ToolChoice(Struct, frozen=True):
    """`any`: some call must come; `tool`: one of the tool `name`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, frozen=True):
    """Whether the template is to ask for reasoning; without it the template's default counts."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None


class OutputConfig(Struct, frozen=True):
    """`effort`: a variable of the template. `format`: a JSON schema that the answer must fit."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class PromptFields(Struct, frozen=True, kw_only=True):
    """What makes the prompt: the body of a request to count its tokens."""

    model: str | None = None
    messages: list[Turn] | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    mcp_servers: list[Any] | None = None
    context_management: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """Of the template; models call the switch for reasoning by either name."""
        variables = dict(self.chat_template_kwargs or {})
        if self.thinking:
            on = self.thinking.type != "disabled"
            variables = {"enable_thinking": on, "thinking": on} | variables
        if self.output_config and self.output_config.effort:
            variables.setdefault("reasoning_effort", self.output_config.effort)
        return variables

    @property
    def several(self) -> bool:
        return not (self.tool_choice and self.tool_choice.disable_parallel_tool_use)

    def check(self) -> None:
        """Raises ApiError 400 for what cannot be honoured."""
        if not self.messages:
            raise ApiError(400, "messages: at least one message is required", param="messages")
        if self.mcp_servers:
            text = "mcp_servers is not supported by this server"
            raise ApiError(400, text, param="mcp_servers", code="unsupported_parameter")


class MessagesFields(PromptFields, frozen=True, kw_only=True):
    """The body of a request for a message. What stands below `service_tier` is our own."""

    max_tokens: Count | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 30)] | None = None  # -1 and 0: off
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    seed: int | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)] | None = None
    structured_outputs: StructuredOutputs | None = None

    def check(self) -> None:
        PromptFields.check(self)
        if self.max_tokens is None:
            raise ApiError(400, "max_tokens: Field required", param="max_tokens")
        check_stops(self.stop_sequences or (), "stop_sequences")

    def generation(self, judge: Judge) -> GenerationFields:
        """The same in the terms of the other surfaces. Judges the format: call it in a thread."""
        return GenerationFields(
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            cache_salt=self.cache_salt,
            priority=self.priority,
            structured_outputs=self.structured_outputs,
            response_format=_format(self.output_config, judge),
        )


def _format(config: OutputConfig | None, judge: Judge) -> dict[str, Any] | None:
    """The format as chat has it. Raises ApiError 400, also for a schema that is no grammar."""
    if config is None or config.format is None:
        return None
    where = "output_config.format"
    schema = config.format.get("schema")
    if config.format.get("type") != "json_schema" or not isinstance(schema, dict):
        raise ApiError(400, f"{where}: a json_schema with its schema", param=where)
    judged(json_grammar(schema, where), where, judge)
    return {"type": "json_schema", "json_schema": {"schema": schema}}
