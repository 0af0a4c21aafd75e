"""Errors in OpenAI's shape: {"error": {message, type, param, code}}, whatever went wrong.

Routes of other dialects may have shapes of their own.

No text of a Python exception ever reaches a client.
"""

import http
import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec
from fastapi import FastAPI, Request, Response
from msgspec import Struct
from starlette.exceptions import HTTPException

from radixserve.api.access import HEADER, record_of
from radixserve.messages import REJECTIONS
from radixserve.tokenizer.engine import EngineStopped, RequestRejected
from radixserve.tokenizer.invalid import InvalidRequest


class ErrorFields(Struct):
    """`code` is a short name for programs, `param` the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct):
    """The body of every answer with a status of 4xx or 5xx."""

    error: ErrorFields


class ApiError(Exception):
    """An answer with a status of 4xx or 5xx.

    `retry_after`: seconds after which trying again makes sense; 0: it does not, or nobody knows.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers: dict[str, str] = {}
        if retry_after > 0:
            self.headers["retry-after"] = str(math.ceil(retry_after))
        if status == 401:
            self.headers["www-authenticate"] = "Bearer"
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = ErrorBody(ErrorFields(message, kind, param, code))


def json_response(content: object, status: int = 200) -> Response:
    """`content`, a Struct or plain data, as JSON; numbers that JSON lacks become null."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def as_api_error(error: Exception) -> ApiError:
    """What a client is told about an error that a request may meet."""
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            return ApiError(400, error.message, param=error.param, code=error.code)
        case RequestRejected():
            status = REJECTIONS.get(error.code, 500)
            return ApiError(status, str(error), code=error.code, retry_after=error.retry_after)
        case EngineStopped():
            return ApiError(503, str(error), code="engine_stopped", retry_after=error.retry_after)
        case HTTPException():
            return ApiError(error.status_code, http.HTTPStatus(error.status_code).phrase)
        case _:
            return ApiError(500, "internal error of the server", code="internal_error")


EXPECTED = (ApiError, InvalidRequest, RequestRejected, EngineStopped)


Shape: TypeAlias = Callable[[ApiError, str], object]  # of an error and its request's id: a body


def _shape_for(path: str, shapes: Mapping[str, Shape]) -> Shape:
    for top, shape in shapes.items():
        if path == top or path.startswith(f"{top}/"):
            return shape
    return lambda error, _: error.body


def answer_errors(app: FastAPI, shapes: Mapping[str, Shape]) -> None:
    """Make `app` answer all errors as JSON; those not expected are also logged.

    `shapes`: path -> the form of the errors of this path and all below it, where it is not ours.
    """

    async def answer(request: Request, error: Exception) -> Response:
        told = as_api_error(error)
        body = _shape_for(request.scope["path"], shapes)(told, record_of(request).id)
        response = json_response(body, told.status)
        response.headers.update(told.headers)
        response.headers[HEADER] = record_of(request).id  # `AccessLog` may see no answer
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update(error.headers)
        return response

    for kind in (*EXPECTED, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
