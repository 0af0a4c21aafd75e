"""The ASGI application: all surfaces over one `Front`, with their key check and error shape."""

import hmac
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.params import Depends as DependsOn
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.middleware.cors import CORSMiddleware

from radixserve.api import (
    chat,
    completions,
    control,
    health,
    metrics,
    models,
    openapi,
    render,
    server,
    tokenization,
)
from radixserve.api.access import HEADER, AccessLog
from radixserve.api.anthropic import messages
from radixserve.api.anthropic.errors import error_body
from radixserve.api.errors import ApiError, answer_errors
from radixserve.api.front import Front
from radixserve.api.responses import routes as responses

KEY_HEADER = "x-api-key"


def key_check(api_key: str) -> Callable[[Request], Awaitable[None]]:
    """A dependency that lets requests with this key through, whichever header it is in."""
    wanted = api_key.encode()

    def right(key: str) -> bool:
        return hmac.compare_digest(key.strip().encode("latin-1"), wanted)

    async def check(request: Request) -> None:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if not (
            (scheme.lower() == "bearer" and right(bearer))
            or right(request.headers.get(KEY_HEADER, ""))
        ):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")

    return check


def _key_asked(api_key: str) -> list[DependsOn]:
    """All but the first only tell the OpenAPI document of the key."""
    if not api_key:
        return []
    return [
        Depends(key_check(api_key)),
        Depends(HTTPBearer(auto_error=False)),
        Depends(APIKeyHeader(name=KEY_HEADER, auto_error=False)),
    ]


def create_app(front: Front) -> FastAPI:
    """All routes. Those of `guarded` ask for the key if there is one; the others never do."""
    app = FastAPI(
        title="radixserve",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # a redirect names a host that the client made up
    )
    answer_errors(app, {messages.PATH: error_body})
    _add_middleware(app, front.config.cors_origins)
    guarded = APIRouter(dependencies=_key_asked(front.config.api_key), responses=openapi.FAULTS)
    surfaces = (
        chat, completions, responses, messages, render, tokenization, models, control
    )  # fmt: skip
    for router in (*(surface.routes(front) for surface in surfaces), server.guarded_routes(front)):
        guarded.include_router(router)
    app.include_router(guarded)
    for router in (
        health.routes(front.engine),
        metrics.routes(front.metrics, front.engine),
        server.routes(front),
        openapi.routes(app, strict=front.config.strict_fields),
    ):
        app.include_router(router, responses=openapi.FAULTS)
    return app


def _add_middleware(app: FastAPI, cors_origins: str) -> None:
    """The last one added is the outermost."""
    if origins := [origin.strip() for origin in cors_origins.split(",") if origin.strip()]:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[HEADER, "retry-after"],
        )
    app.add_middleware(AccessLog)
