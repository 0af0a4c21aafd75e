"""`GET /v1/models` and `/v1/models/{id}`: the one model of this server."""

from typing import Any

from fastapi import APIRouter, Response

from radixserve.api.errors import json_response
from radixserve.api.front import Front


def routes(front: Front) -> APIRouter:
    router = APIRouter()

    def model() -> dict[str, Any]:
        return {
            "id": front.model,
            "object": "model",
            "created": front.created,
            "owned_by": "radixserve",
            "max_model_len": front.ready().max_total_tokens,
        }

    @router.api_route("/v1/models", methods=["GET", "HEAD"])
    async def list_models() -> Response:
        return json_response({"object": "list", "data": [model()]})

    @router.get("/v1/models/{name:path}")
    async def retrieve_model(name: str) -> Response:
        front.check_model(name)
        return json_response(model())

    return router
