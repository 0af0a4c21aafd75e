"""`GET /health`: 200 while requests can be served, else 503 with the reason.

It runs no request: it tells what the scheduler's heartbeat says.
"""

from fastapi import APIRouter, Response

from radixserve.api.errors import ApiError, json_response
from radixserve.tokenizer.engine import Engine


def routes(engine: Engine) -> APIRouter:
    router = APIRouter()

    @router.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        if trouble := engine.trouble():
            wait = 0 if engine.stopped else 1
            raise ApiError(503, trouble, code="unhealthy", retry_after=wait)
        return json_response({"status": "ok"})

    return router
