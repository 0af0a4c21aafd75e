"""The routes of `/v1/responses`."""

from typing import Any

from fastapi import APIRouter, Request, Response

from radixserve.api.access import record_of
from radixserve.api.errors import ApiError, json_response
from radixserve.api.events import EventStream, answer_while_connected
from radixserve.api.fields import check_fields
from radixserve.api.front import Front
from radixserve.api.openapi import probe, takes
from radixserve.api.responses.fields import ResponseFields, check_response, with_format
from radixserve.api.responses.items import read_items
from radixserve.api.responses.respond import Given, Responder
from radixserve.api.responses.store import ResponseStore, Stored
from radixserve.api.responses.tools import ToolReader

PATH = "/v1/responses"
STORED = f"{PATH}/resp_{{key}}"  # so that other words below PATH are no ids
MOST_LISTED = 100  # items at once
LISTED = 20


def routes(front: Front) -> APIRouter:
    router = APIRouter()
    store = ResponseStore(front.config.max_stored_responses)
    tool_reader = ToolReader()
    _add_stored(router, front, store)

    @router.post(PATH, **takes(ResponseFields, "input", streams=True))
    async def create_response(request: Request) -> Response:
        """The next items of a conversation, which may be one that is stored."""
        fields = await front.parser.read(request, ResponseFields)
        front.check_model(fields.model)
        check_response(fields)
        fields = with_format(fields)
        check_fields(fields)
        tools = tool_reader.read(fields.tools or [])
        items = read_items(fields.input or [], store.item, front.unreadable)
        responder = Responder(front, store, Given(fields, tools, items), record_of(request))
        if fields.stream:
            return EventStream(responder.events())
        return await answer_while_connected(request.receive, responder.answer())

    return router


def _add_stored(router: APIRouter, front: Front, store: ResponseStore) -> None:
    """The routes of one stored response."""

    def find(key: str) -> Stored:
        stored = store.find(f"resp_{key}")
        if stored is None:
            raise _missing(key)
        return stored

    @probe(router, STORED)
    async def retrieve_response(request: Request, key: str) -> Response:
        """A stored response."""
        if request.query_params.get("stream", "false").lower() == "true":
            raise ApiError(400, "stream: a response is not streamed again", param="stream")
        return json_response(find(key).response)

    @router.delete(STORED)
    async def delete_response(key: str) -> Response:
        """Forget a response. Those that continue it stay whole."""
        if not store.delete(f"resp_{key}"):
            raise _missing(key)
        return json_response({"id": f"resp_{key}", "object": "response", "deleted": True})

    @probe(router, f"{STORED}/input_items")
    async def list_input_items(request: Request, key: str) -> Response:
        """The input items of a stored response, without those of the ones that it continues."""
        return json_response(_listed(find(key).own_input, dict(request.query_params)))

    @router.post(f"{STORED}/cancel")
    async def cancel_response(request: Request, key: str) -> Response:
        """Always refused: no response runs in the background."""
        await front.parser.skip(request)
        find(key)
        raise ApiError(400, "only responses that run in the background can be cancelled")


def _missing(key: str) -> ApiError:
    return ApiError(404, f"there is no response resp_{key[:100]}", code="response_not_found")


def _listed(items: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
    """A page of a list in OpenAI's form. ApiError 400."""
    limit, order = query.get("limit", str(LISTED)), query.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MOST_LISTED):
        raise ApiError(400, f"limit: from 1 to {MOST_LISTED}", param="limit")
    if order not in ("asc", "desc"):
        raise ApiError(400, "order: asc or desc", param="order")
    if order == "desc":
        items = items[::-1]
    if (after := query.get("after")) is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise ApiError(400, f"after: there is no item {after[:100]}", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }
