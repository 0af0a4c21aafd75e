"""The prompt of a conversation: template and encoding, one way for all surfaces."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from radixserve.api.errors import ApiError
from radixserve.api.front import Front
from radixserve.messages import Ready
from radixserve.tokenizer.conversation import conversation
from radixserve.tokenizer.prompt import encode_any, encode_prompt

END_LENGTH = 256  # characters; longer than any mark a format looks for


class Conversation(Struct, frozen=True, kw_only=True):
    """What a prompt is made from; messages and tools as OpenAI's chat sends them."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] = {}  # of the template
    header: bool = True  # ends with the start of an assistant's message
    prefill: bool = False  # instead, the last message goes on
    add_special_tokens: bool = True


def render(front: Front, chat: Conversation) -> str:
    """The prompt's text. ApiError or InvalidRequest if there is none. Slow: call it in a thread."""
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
    if chat.prefill:
        return template.render_prefill(messages, tools=chat.tools, variables=chat.variables)
    return template.render(
        messages,
        tools=chat.tools,
        variables=chat.variables,
        add_generation_prompt=chat.header,
    )


class ChatPrompt(Struct, frozen=True):
    """`end`: the last characters of the text, which may have begun the answer's reasoning."""

    tokens: list[int]
    end: str


def chat_prompt(
    front: Front, chat: Conversation, ready: Ready, keep: int | None = None
) -> ChatPrompt:
    """The prompt within the limits of the engine; of more than `keep` tokens the last ones."""
    text = render(front, chat)
    tokens = encode_prompt(
        text,
        front.vocabulary,
        ready,
        "messages",
        add_special_tokens=chat.add_special_tokens,
        keep=keep,
    )
    return ChatPrompt(tokens, text[-END_LENGTH:])


def chat_tokens(front: Front, chat: Conversation) -> list[int]:
    """The same of a conversation that may be longer than the context."""
    return encode_any(
        render(front, chat),
        front.vocabulary,
        "messages",
        add_special_tokens=chat.add_special_tokens,
    )


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
