"""The OpenAPI document, and a page to read it with that needs no network.

Routes parse their bodies themselves, so what they take is said by `takes` and described from the
msgspec structs. FastAPI makes the rest of the document from the routes.
"""

from collections.abc import Callable
from importlib.resources import files
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, FastAPI, Response
from fastapi.openapi.utils import get_openapi
from msgspec import Struct

from radixserve import __version__
from radixserve.api.errors import ErrorBody, json_response

Handler = TypeVar("Handler", bound=Callable[..., Any])

REFERENCE = "#/components/schemas/{name}"
SCHEMAS = "x-schemas"  # where an operation keeps them until the document is made


def takes(
    kind: type[Struct],
    *required: str,
    streams: bool = False,
    faults: type[Struct] = ErrorBody,
) -> dict[str, Any]:
    """What a route that reads a `kind` says of itself, as arguments for its decorator.

    `required`: fields that must be there, though their type has a default. `streams`: the answer
    may be server-sent events. `faults`: the body of its errors.
    """
    (schema, _), schemas = msgspec.json.schema_components([kind, faults], ref_template=REFERENCE)
    if required:
        schema = {"allOf": [schema, {"type": "object", "required": list(required)}]}
    extra = {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        SCHEMAS: schemas,
    }
    responses = _told(faults)
    if streams:
        kinds = ("application/json", "text/event-stream")
        responses[200] = {"content": {name: {"schema": {}} for name in kinds}}
    return {"openapi_extra": extra, "responses": responses}


def _told(faults: type[Struct]) -> dict[int | str, dict[str, Any]]:
    """The responses of a route that fails with such bodies."""
    schema = {"$ref": REFERENCE.format(name=faults.__name__)}
    content = {"application/json": {"schema": schema}}
    return {"default": {"description": "what went wrong", "content": content}}


FAULTS = _told(ErrorBody)


def probe(router: APIRouter, *paths: str, **told: Any) -> Callable[[Handler], Handler]:
    """Serve GET and HEAD on each of `paths`; the document tells of GET, and what is `told`."""

    def register(handler: Handler) -> Handler:
        for path in paths:
            router.get(path, **told)(handler)
            router.head(path, include_in_schema=False)(handler)
        return handler

    return register


def document(app: FastAPI, *, strict: bool) -> dict[str, Any]:
    """The description of all routes of `app`. `strict`: see --strict-fields."""
    made = get_openapi(
        title="radixserve",
        version=__version__,
        description="LLM serving with an exact radix-tree prefix cache. Unknown fields are "
        + ("refused" if strict else "ignored")
        + "; known ones that this server does not honour are refused with 400.",
        routes=app.routes,
    )
    _, schemas = msgspec.json.schema_components([ErrorBody], ref_template=REFERENCE)
    for operations in made["paths"].values():
        for operation in operations.values():
            own = operation.pop(SCHEMAS, {})
            schemas |= own
            if strict and any("model" in schema.get("properties", ()) for schema in own.values()):
                _require(operation["requestBody"]["content"]["application/json"], "model")
    made.setdefault("components", {})["schemas"] = schemas
    return made


def _require(content: dict[str, Any], name: str) -> None:
    """A body of this content must have the field `name`."""
    content["schema"] = {"allOf": [content["schema"], {"type": "object", "required": [name]}]}


def routes(app: FastAPI, *, strict: bool) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    page = files("radixserve").joinpath("web/docs.html").read_bytes()

    @probe(router, "/openapi.json")
    async def openapi() -> Response:
        if app.openapi_schema is None:
            app.openapi_schema = document(app, strict=strict)
        return json_response(app.openapi_schema)

    @probe(router, "/docs")
    async def docs() -> Response:
        return Response(
            page,
            media_type="text/html",
            headers={"content-security-policy": "default-src 'self' 'unsafe-inline'"},
        )

    return router
