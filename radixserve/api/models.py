"""`GET /v1/models` and `/v1/models/{id}`: the one model of this server."""

from typing import Any

from fastapi import APIRouter, Response

from radixserve.api.errors import json_response
from radixserve.api.front import Front
from radixserve.api.openapi import probe


def routes(front: Front) -> APIRouter:
    router = APIRouter()

    def model() -> dict[str, Any]:
        return {
            "id": front.model,
            "object": "model",
            "created": front.created,
            "owned_by": "radixserve",
            "root": front.model,
            "max_model_len": front.ready().max_total_tokens,
        }

    @probe(router, "/v1/models")
    async def list_models() -> Response:
        """The models of this server."""
        return json_response({"object": "list", "data": [model()]})

    @probe(router, "/v1/models/{name:path}")
    async def retrieve_model(name: str) -> Response:
        """One model."""
        front.check_model(name)
        return json_response(model())

    return router
