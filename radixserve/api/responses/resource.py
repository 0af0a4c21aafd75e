"""The response object: what was asked, said again with its defaults, and what came of it."""

import time
from collections.abc import Sequence
from typing import Any

from radixserve.api.defaults import SamplingDefaults
from radixserve.api.errors import ApiError
from radixserve.api.fields import or_default
from radixserve.api.generation import Usage
from radixserve.api.responses.fields import ResponseFields
from radixserve.api.responses.tools import Tools

ABORTED = {"code": "server_error", "message": "the request was aborted"}


def echo(
    fields: ResponseFields, tools: Tools, model: str, defaults: SamplingDefaults
) -> dict[str, Any]:
    """What a response says of its request: the part that does not change while it runs."""
    reasoning = fields.reasoning
    return {
        "model": model,
        "instructions": fields.instructions,
        "previous_response_id": fields.previous_response_id,
        "store": fields.keeps,
        "background": False,
        "max_output_tokens": fields.limit or None,
        "max_tool_calls": fields.max_tool_calls,
        "tools": tools.shown,
        "tool_choice": fields.tool_choice or "auto",
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "text": _text(fields),
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "temperature": or_default(fields.temperature, defaults.temperature),
        "top_p": or_default(fields.top_p, defaults.top_p),
        "top_logprobs": fields.top_logprobs or 0,
        "presence_penalty": fields.presence_penalty or 0.0,
        "frequency_penalty": fields.frequency_penalty or 0.0,
        "truncation": fields.truncation or "disabled",
        "service_tier": "default",
        "metadata": fields.metadata or {},
        "prompt_cache_key": fields.prompt_cache_key,
        "safety_identifier": fields.safety_identifier,
    } | ({"user": fields.user} if fields.user is not None else {})


def _text(fields: ResponseFields) -> dict[str, Any]:
    given = fields.text
    form = (given.format if given else None) or {"type": "text"}
    if form["type"] == "json_schema":
        form = {"description": None, **form, "strict": bool(form.get("strict"))}
    verbosity = given.verbosity if given else None
    return {"format": form} | ({"verbosity": verbosity} if verbosity else {})


def in_progress(id: str, created: int, said: dict[str, Any]) -> dict[str, Any]:
    """`said`: see `echo`."""
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
    } | said


def ended(
    begun: dict[str, Any], finish: str, output: Sequence[dict[str, Any]], usage: dict[str, Any]
) -> dict[str, Any]:
    """`finish`: stop, length or abort."""
    done = begun | {"output": list(output), "usage": usage}
    if finish == "stop":
        return done | {"status": "completed", "completed_at": int(time.time())}
    if finish == "length":
        return done | {
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
        }
    return done | {"status": "failed", "error": ABORTED}


def failed(begun: dict[str, Any], error: ApiError) -> dict[str, Any]:
    """Of an error that came while it ran. Its output is what the stream has said, not repeated."""
    told = error.body.error
    return begun | {
        "status": "failed",
        "error": {"code": "server_error", "message": told.message},
    }


def usage_of(usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": cached,
            "cache_write_tokens": usage.prompt_tokens - cached,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
