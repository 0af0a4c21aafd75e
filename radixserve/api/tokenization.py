"""`POST /tokenize` and `/detokenize`: text to tokens and back, as vLLM defines them.

The same template and encoding as for generation, but beyond the context too.
"""

from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from radixserve.api.errors import ApiError, json_response
from radixserve.api.front import Front
from radixserve.api.openapi import takes
from radixserve.api.prompts import Conversation, chat_tokens, check_prefill, check_tools
from radixserve.tokenizer.decode import decode_text
from radixserve.tokenizer.prompt import check_id, encode_any

MAX_TOKENS = 1 << 20  # that are turned into text at once


class TokenizeFields(Struct, frozen=True, kw_only=True):
    """A prompt, or messages as for `/v1/chat/completions`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None

    @property
    def special(self) -> bool:
        return self.add_special_tokens is not False

    @property
    def conversation(self) -> Conversation:
        return Conversation(
            messages=self.messages or [],
            tools=self.tools,
            variables=self.chat_template_kwargs or {},
            header=self.add_generation_prompt is not False,
            prefill=bool(self.continue_final_message),
            add_special_tokens=self.special,
        )


class DetokenizeFields(Struct, frozen=True, kw_only=True):
    """Token ids whose text is wanted."""

    model: str | None = None
    tokens: list[int] | None = None


def routes(front: Front) -> APIRouter:
    router = APIRouter()
    vocabulary = front.vocabulary

    def encode(fields: TokenizeFields) -> list[int]:
        if fields.prompt is not None:
            return encode_any(
                fields.prompt, vocabulary, "prompt", add_special_tokens=fields.special
            )
        return chat_tokens(front, fields.conversation, fields.cache_salt or "")

    @router.post("/tokenize", **takes(TokenizeFields))
    async def tokenize(request: Request) -> Response:
        """The tokens of a prompt or a conversation."""
        fields = await front.parser.read(request, TokenizeFields)
        front.check_model(fields.model)
        if (fields.prompt is None) == (fields.messages is None):
            raise ApiError(400, "one of prompt and messages is required", param="prompt")
        check_prefill(fields.add_generation_prompt, fields.continue_final_message)
        check_tools(fields.tools)
        ready = front.ready()
        tokens = await front.in_thread(lambda: encode(fields))
        told = {"count": len(tokens), "max_model_len": ready.max_total_tokens, "tokens": tokens}
        strings = [vocabulary.spelling(t) for t in tokens] if fields.return_token_strs else None
        return json_response(told | {"token_strs": strings})

    @router.post("/detokenize", **takes(DetokenizeFields, "tokens"))
    async def detokenize(request: Request) -> Response:
        """The text of tokens; special ones are spelled out."""
        fields = await front.parser.read(request, DetokenizeFields)
        front.check_model(fields.model)
        tokens = fields.tokens
        if tokens is None:
            raise ApiError(400, "tokens is required", param="tokens")
        if len(tokens) > MAX_TOKENS:
            raise ApiError(400, f"tokens: at most {MAX_TOKENS}", param="tokens")
        ready = front.ready()
        for token in {min(tokens), max(tokens)} if tokens else ():
            check_id(token, ready, "tokens")
        text = await front.in_thread(lambda: decode_text(tokens, vocabulary))
        return json_response({"prompt": text})

    return router
