"""`GET /health` and `/ready`: 200 while requests can be served, else 503 with the reason.

They run no request: they tell what the scheduler's heartbeat says. Both are 503 until the engine
has come up, while it is silent, and from the moment the server is told to stop: running requests
are then still answered.
"""

from fastapi import APIRouter, Response

from radixserve.api.errors import ApiError, json_response
from radixserve.api.openapi import probe
from radixserve.tokenizer.engine import AWAY_SECONDS, Engine


def routes(engine: Engine) -> APIRouter:
    router = APIRouter()

    def check(code: str) -> None:
        if trouble := engine.trouble():
            wait = 0 if engine.stopped else AWAY_SECONDS if engine.draining else 1
            raise ApiError(503, trouble, code=code, retry_after=wait)

    @probe(router, "/health")
    async def health() -> Response:
        """Whether the server is well."""
        check("unhealthy")
        return json_response({"status": "ok"})

    @probe(router, "/ready")
    async def ready() -> Response:
        """Whether to send requests here."""
        check("not_ready")
        return json_response({"status": "ready"})

    return router
