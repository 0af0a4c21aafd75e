"""The ASGI application: all surfaces over one `Front`, with their key check and error shape."""

import hmac
from collections.abc import Awaitable, Callable

from fastapi import Depends, FastAPI, Request

from radixserve.api import chat, completions, health, metrics, models
from radixserve.api.errors import ApiError, answer_errors
from radixserve.api.front import Front


def key_check(api_key: str) -> Callable[[Request], Awaitable[None]]:
    """A dependency that lets through only requests with this bearer key; all if it is ""."""
    wanted = api_key.encode()

    async def check(request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(key.strip().encode("latin-1"), wanted)
        if wanted and not (right and scheme.lower() == "bearer"):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")

    return check


def create_app(front: Front) -> FastAPI:
    """All routes. `/v1` asks for the key if there is one; health and metrics never do."""
    app = FastAPI(title="radixserve", docs_url=None, redoc_url=None, openapi_url=None)
    answer_errors(app)
    guarded = [Depends(key_check(front.config.api_key))]
    for surface in (chat, completions, models):
        app.include_router(surface.routes(front), dependencies=guarded)
    app.include_router(health.routes(front.engine))
    app.include_router(metrics.routes(front.metrics, front.engine))
    return app
