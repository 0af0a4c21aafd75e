"""Errors as Anthropic's clients read them."""

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


class MessagesErrorFields(Struct):
    """What went wrong."""

    type: str
    message: str


class MessagesErrorBody(Struct, tag="error"):
    """The body of every answer with a status of 4xx or 5xx, and of an `error` event."""

    error: MessagesErrorFields
    request_id: str


def error_body(error: ApiError, request_id: str) -> MessagesErrorBody:
    usual = "invalid_request_error" if error.status < 500 else "api_error"
    fields = MessagesErrorFields(TYPES.get(error.status, usual), error.body.error.message)
    return MessagesErrorBody(fields, request_id)


def error_event(error: ApiError, request_id: str) -> bytes:
    return event(error_body(error, request_id), "error")
