"""What this server is and how busy it is: for people, routers and load balancers."""

import time
from typing import Any

from fastapi import APIRouter, Response

from radixserve import __version__
from radixserve.api.errors import ApiError, json_response
from radixserve.api.front import Front
from radixserve.api.openapi import probe
from radixserve.messages import Ready, Stats


def routes(front: Front) -> APIRouter:
    """Those that anyone may ask."""
    router = APIRouter()

    @probe(router, "/")
    async def root() -> Response:
        """Says hello; clients use it to see whether there is a server."""
        return json_response({"name": "radixserve", "version": __version__, "docs": "/docs"})

    @probe(router, "/version")
    async def version() -> Response:
        """The version of radixserve."""
        return json_response({"version": __version__})

    @probe(router, "/load")
    async def load() -> Response:
        """How many requests have no end yet, those that wait included."""
        return json_response({"server_load": front.engine.unfinished})

    return router


def guarded_routes(front: Front) -> APIRouter:
    """Those that ask for the API key."""
    router = APIRouter()

    @probe(router, "/server_info", "/get_server_info")
    async def server_info() -> Response:
        """Model, limits, version, and the settings without the API key."""
        return json_response(_info(front, front.ready()))

    @probe(router, "/v1/loads")
    async def loads() -> Response:
        """Running and waiting requests and the share of the K/V pool in use."""
        stats = front.engine.stats
        if stats is None:
            raise ApiError(503, "the engine is starting", code="engine_unavailable", retry_after=1)
        return json_response(_loads(front.ready(), stats))

    return router


def _info(front: Front, ready: Ready) -> dict[str, Any]:
    return {
        "version": __version__,
        "model_path": front.settings["worker"]["model_path"],
        "served_model_name": front.model,
        "fingerprint": ready.fingerprint,
        "max_model_len": ready.max_total_tokens,
        "context_length": ready.context_length,
        "vocab_size": ready.vocab_size,
        "page_size": ready.page_size,
        "block_size": ready.page_size,
        "num_pages": ready.num_pages,
        "max_total_num_tokens": ready.num_pages * ready.page_size,
        "settings": front.settings,
    }


def _loads(ready: Ready, stats: Stats) -> dict[str, Any]:
    """In SGLang's shape. A page that only the cache holds is not in use: it can be had at once."""
    used = stats.pages_total - stats.pages_free - stats.pages_evictable
    usage = used / stats.pages_total if stats.pages_total else 0.0
    hits = stats.cached_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0
    load = {
        "dp_rank": 0,
        "num_running_reqs": stats.running,
        "num_waiting_reqs": stats.waiting,
        "num_waiting_uncached_tokens": stats.queued_tokens,
        "num_used_tokens": used * ready.page_size,
        "max_total_num_tokens": stats.pages_total * ready.page_size,
        "token_usage": usage,
        "cache_hit_rate": hits,
    }
    total = {
        "total_running_reqs": stats.running,
        "total_waiting_reqs": stats.waiting,
        "total_reqs": stats.running + stats.waiting,
        "avg_token_usage": usage,
    }
    return {
        "timestamp": time.time(),
        "version": __version__,
        "dp_rank_count": 1,
        "loads": [load],
        "aggregate": total,
    }
