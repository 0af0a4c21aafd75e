"""Orders of an operator: empty the cache, end a request. All ask for the API key.

`POST /flush_cache` and `/reset_prefix_cache` are the same: no later request hits what was cached
before, in any namespace. Requests that run keep what they read; pins end.
"""

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from radixserve.api.errors import ApiError, json_response
from radixserve.api.events import answer_while_connected
from radixserve.api.front import Front, new_id
from radixserve.api.openapi import takes
from radixserve.messages import Invalidate


class AbortFields(Struct, frozen=True, kw_only=True):
    """The id of an answer, or the X-Request-Id of a request; `rid` is the same."""

    request_id: str | None = None
    rid: str | None = None
    abort_all: bool | None = None


def routes(front: Front) -> APIRouter:
    router = APIRouter()
    engine = front.engine

    async def flush() -> Response:
        order = Invalidate(new_id("flush"), engine.origin, None)
        done = await engine.invalidate(order)
        return json_response({"status": "ok", "invalidated_tokens": done.tokens})

    @router.post("/flush_cache")
    @router.post("/reset_prefix_cache")
    async def flush_cache(request: Request) -> Response:
        """Forget all cached prefixes."""
        front.ready()
        await front.parser.skip(request)
        return await answer_while_connected(request.receive, flush())

    @router.post("/abort_request", **takes(AbortFields))
    async def abort_request(request: Request) -> Response:
        """End a request; its client gets what has come so far and the finish reason `abort`."""
        fields = await front.parser.read(request, AbortFields)
        name = fields.request_id or fields.rid
        if not name and not fields.abort_all:
            raise ApiError(400, "request_id is required", param="request_id")
        return json_response({"aborted": engine.abort(None if fields.abort_all else name)})

    return router
