"""Errors as Anthropic's clients read them."""

from typing import Any

from msgspec import Struct

from radixserve.api.errors import ApiError
from radixserve.api.events import event

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


# Threads are conversations that a server holds, so that a turn sends only what is new. Anthropic's
# client offers to make one and goes on without, sending the whole conversation, if told so here.
NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


class MessagesErrorFields(Struct, omit_defaults=True):
    """What went wrong; `details` where a client can do something about it."""

    type: str
    message: str
    details: dict[str, Any] | None = None


class MessagesErrorBody(Struct, tag="error"):
    """The body of every answer with a status of 4xx or 5xx, and of an `error` event."""

    error: MessagesErrorFields
    request_id: str


def error_body(error: ApiError, request_id: str) -> MessagesErrorBody:
    usual = "invalid_request_error" if error.status < 500 else "api_error"
    told = error.body.error
    details = NO_THREADS if told.param == "thread" else None
    fields = MessagesErrorFields(TYPES.get(error.status, usual), told.message, details)
    return MessagesErrorBody(fields, request_id)


def error_event(error: ApiError, request_id: str) -> bytes:
    return event(error_body(error, request_id), "error")
