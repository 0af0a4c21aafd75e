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
            raise ApiError(503, trouble, code="unhealthy")
        return json_response({"status": "ok"})

    return router
