"""The prompt of a conversation: template and encoding, one way for all surfaces."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from radixserve.api.errors import ApiError
from radixserve.api.front import Front
from radixserve.api.history.keys import first_key
from radixserve.api.history.splice import END_LENGTH, Draft, Place, Rendering
from radixserve.messages import Ready
from radixserve.parsing.format import format_of
from radixserve.parsing.tools import Tool, schema_of
from radixserve.tokenizer.conversation import conversation
from radixserve.tokenizer.invalid import InvalidRequest
from radixserve.tokenizer.prompt import encode_any, encode_prompt
from radixserve.tokenizer.templates import ChatTemplate
from radixserve.tokenizer.told_tools import told_tools


class Conversation(Struct, frozen=True, kw_only=True):
    """What a prompt is made from; messages and tools as OpenAI's chat sends them."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] = {}  # of the template
    header: bool = True  # ends with the start of an assistant's message
    prefill: bool = False  # instead, the last message goes on
    add_special_tokens: bool = True


def draft(front: Front, chat: Conversation, salt: str = "", *, recall: bool = True) -> Draft:
    """The prompt before it is encoded. ApiError or InvalidRequest if there is none.

    Slow: call it in a thread. `salt`: whose answers it may hold. Not `recall`: nothing that was
    answered before stands in for what the client sent.
    """
    template = front.template
    if template is None:
        raise ApiError(
            400,
            "this model has no chat template: use /v1/completions,"
            " or start the server with --chat-template FILE",
            code="no_chat_template",
        )
    messages = conversation(
        chat.messages, knows_developer=template.knows_developer, unreadable=front.unreadable
    )
    write = partial(_write, front, template, chat)
    if front.splicer is None or not recall:
        return Draft(write(messages))
    functions = [tool["function"] for tool in chat.tools or ()]
    rendering = Rendering(
        write,
        partial(_write, front, template, replace(chat, header=False, prefill=False)),
        format_of(front.format, bool(functions)),
        [Tool(function["name"], schema_of(function)) for function in functions],
        chat.prefill,
    )
    first = first_key(salt, chat.tools, chat.variables, chat.add_special_tokens)
    made = front.splicer.draft(first, messages, rendering)
    return replace(made, place=None) if chat.prefill else made


def _write(
    front: Front, template: ChatTemplate, chat: Conversation, messages: Sequence[Mapping[str, Any]]
) -> str:
    tools = chat.tools
    if front.tells_tools:
        messages = told_tools(messages, tools, takes_system=front.traits.prints_system)
        tools = None
    if chat.prefill:
        return template.render_prefill(messages, tools=tools, variables=chat.variables)
    return template.render(
        messages, tools=tools, variables=chat.variables, add_generation_prompt=chat.header
    )


class ChatPrompt(Struct, frozen=True):
    """`end`: the last characters of the text, which may have begun the answer's reasoning.

    `place`: where the answer is to be remembered, if it is.
    """

    tokens: list[int]
    end: str
    place: Place | None = None


def chat_prompt(
    front: Front, chat: Conversation, ready: Ready, keep: int | None = None, salt: str = ""
) -> ChatPrompt:
    """The prompt within the limits of the engine; of more than `keep` tokens the last ones.

    Where it would be too long with the reasoning that its client left out, it is made without.
    """

    def made(recall: bool, keep: int | None = None) -> tuple[Draft, list[int]]:
        text = draft(front, chat, salt, recall=recall)
        special = chat.add_special_tokens
        return text, encode_prompt(
            text.parts(), front.vocabulary, ready, "messages", add_special_tokens=special, keep=keep
        )

    try:
        text, tokens = made(True)
        fits = keep is None or len(tokens) <= keep
    except InvalidRequest as error:
        if error.code != "context_length_exceeded":
            raise
        fits = False
    if not fits:
        text, tokens = made(False, keep)
    return ChatPrompt(tokens, text.text[-END_LENGTH:], text.place)


def chat_tokens(front: Front, chat: Conversation, salt: str = "") -> list[int]:
    """The same of a conversation that may be longer than the context."""

    def made(recall: bool) -> list[int]:
        parts = draft(front, chat, salt, recall=recall).parts()
        special = chat.add_special_tokens
        return encode_any(parts, front.vocabulary, "messages", add_special_tokens=special)

    tokens = made(True)
    return tokens if len(tokens) < front.ready().max_total_tokens else made(False)


def check_prefill(header: bool | None, prefill: bool | None) -> None:
    """What clients ask of the prompt's end. Raises ApiError 400."""
    if prefill and header:
        raise ApiError(
            400,
            "continue_final_message and add_generation_prompt exclude each other",
            param="continue_final_message",
        )


def check_tools(tools: Sequence[Mapping[str, Any]] | None) -> None:
    """Raises ApiError 400 for what is no function with a name."""
    for i, tool in enumerate(tools or []):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise ApiError(400, f"tools[{i}] is not a function", param=f"tools[{i}]")
        if not isinstance(function.get("name"), str):
            raise ApiError(400, f"tools[{i}].function.name is missing", param=f"tools[{i}]")
