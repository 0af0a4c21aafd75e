"""`POST /v1/chat/completions/render` and `/v1/completions/render`: what would be computed.

Takes what the routes without `/render` take and answers with the tokens and the sampling instead of
running them, in vLLM's shape: routers ask for it to find the worker with the longest cached prefix.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from radixserve.api.access import record_of
from radixserve.api.chat import ChatFields, check_chat
from radixserve.api.completions import (
    CompletionFields,
    check_completion,
    completion_sampling,
    prompts_of,
)
from radixserve.api.errors import json_response
from radixserve.api.fields import GenerationFields, answer_limit
from radixserve.api.front import Front, new_id
from radixserve.api.openapi import takes
from radixserve.api.prepare import prepare
from radixserve.messages import Sampling, unpack


def routes(front: Front) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions/render", **takes(ChatFields, "messages"))
    async def render_chat(request: Request) -> Response:
        """The tokens of a conversation and the sampling, without an answer."""
        fields = await front.parser.read(request, ChatFields)
        check_chat(front, fields)
        ready = await prepare(front, fields, fields.asked)
        tokens = ready.prompt.tokens
        record_of(request).prompt_tokens = len(tokens)
        return json_response(_rendered(front, "chatcmpl", fields, tokens, ready.sampling))

    @router.post("/v1/completions/render", **takes(CompletionFields, "prompt"))
    async def render_completion(request: Request) -> Response:
        """The tokens of each prompt and the sampling, without an answer."""
        fields = await front.parser.read(request, CompletionFields)
        prompts = check_completion(front, fields)
        sampling = await completion_sampling(front, fields)
        encoded = await prompts_of(front, fields, prompts)
        record_of(request).prompt_tokens = sum(map(len, encoded))
        return json_response([_rendered(front, "cmpl", fields, ids, sampling) for ids in encoded])

    return router


def _rendered(
    front: Front, kind: str, fields: GenerationFields, prompt: Sequence[int], sampling: Sampling
) -> dict[str, Any]:
    limit = answer_limit(fields, len(prompt), front.ready(), front.config.default_max_tokens)
    return {
        "request_id": new_id(kind),
        "token_ids": prompt,
        "sampling_params": _parameters(fields, sampling) | {"max_tokens": limit},
        "model": front.model,
        "stream": bool(fields.stream),
        "cache_salt": fields.cache_salt,
        "priority": fields.priority or 0,
    }


def _parameters(fields: GenerationFields, sampling: Sampling) -> dict[str, Any]:
    """Sampling under the names that vLLM and OpenAI have for it."""
    return {
        "n": fields.n or 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": None if fields.seed is None else sampling.seed,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
        "allowed_token_ids": unpack(sampling.allowed_ids) or None,
        "logprobs": None if sampling.top_logprobs < 0 else sampling.top_logprobs,
        "prompt_logprobs": None if sampling.prompt_logprobs < 0 else sampling.prompt_logprobs,
        "min_tokens": sampling.min_tokens,
        "stop": fields.stops,
        "stop_token_ids": sampling.stop_ids,
        "ignore_eos": bool(fields.ignore_eos),
        "include_stop_str_in_output": fields.include_stop,
        "skip_special_tokens": fields.skip_special,
    }
