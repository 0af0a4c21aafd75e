"""Models, health, metrics, keys."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from radixserve.api.front import Front
from radixserve.api.metrics import (
    COUNTERS,
    GAUGES,
    NAMED_TENANTS,
    TENANT_COUNTERS,
    TENANT_GAUGES,
    Metrics,
)
from radixserve.config import Config, WorkerConfig
from radixserve.messages import Stats, Stop, TenantStats
from radixserve.tokenizer.engine import Engine
from tests.api.fakes import NO_STATS, READY, Server, stats
from tests.api.sending import CHAT, COMPLETIONS, answer, body, fault_of, post

pytestmark = pytest.mark.anyio
NO_BODY = ("/flush_cache", "/reset_prefix_cache")  # whatever body comes means nothing


async def test_models(folder: Path) -> None:
    async with Server(folder).client() as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", 256)
        assert (await client.get("/v1/models/tiny")).json() == model
        missing = await client.get("/v1/models/org/other")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "model_not_found"


async def test_the_model_is_named_after_its_folder(folder: Path) -> None:
    config = Config(worker=WorkerConfig(model_path=str(folder)))
    metrics = Metrics()
    assert Front(config, Engine(lambda _: None, metrics), metrics).model == folder.name


async def test_nothing_is_served_before_ready(folder: Path) -> None:
    server = Server(folder)
    server.engine.ready = None
    async with server.client() as client:
        refusals = [await client.get(route) for route in ("/health", "/v1/models")]
        for streamed in (False, True):
            refusals += [
                await post(client, route, stream=streamed) for route in (CHAT, COMPLETIONS)
            ]
        for refusal in refusals:
            assert (refusal.status_code, refusal.headers["retry-after"]) == (503, "1")
        assert "radixserve_healthy 0.0" in (await client.get("/metrics")).text
        server.engine.deliver([READY])
        assert (await client.get("/health")).json() == {"status": "ok"}
        await answer(client, CHAT)


async def test_health_follows_the_heartbeat_and_the_engine(folder: Path) -> None:
    server = Server(folder)
    async with server.client() as client:
        server.engine._heartbeat -= 11
        silent = await client.get("/health")
        assert silent.status_code == 503 and "silent" in silent.json()["error"]["message"]
        assert silent.headers["retry-after"] == "1"
        server.engine.deliver([NO_STATS])
        assert (await client.get("/health")).status_code == 200
        server.engine.deliver([Stop("the worker died")])
        dead = await client.get("/health")
        assert dead.status_code == 503 and "retry-after" not in dead.headers
        assert dead.json()["error"]["message"] == "the worker died"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Basic secret", 401),
        ("Bearer", 401),
        ("Bearer s\u00e9cret", 401),
        ("Bearer secret", 200),
        ("bearer secret", 200),
    ],
)
async def test_keys(folder: Path, header: str | None, status: int) -> None:
    headers = httpx.Headers({"authorization": header} if header else {}, "utf-8")
    async with Server(folder, api_key="secret").client() as client:
        for route in (CHAT, COMPLETIONS):
            response = await client.post(route, json=body(route), headers=headers)
            assert response.status_code == status
            if status == 401:
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
        assert (await client.get("/v1/models", headers=headers)).status_code == status
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200


async def test_metrics(folder: Path) -> None:
    server = Server(folder, "Hello")
    async with server.client() as client:
        await answer(client, CHAT, n=2)
        await answer(client, COMPLETIONS, max_tokens=1)
        server.engine.deliver(
            [
                stats(
                    running=3,
                    pages_total=5,
                    nodes=9,
                    cached_tokens=12,
                    step_seconds=1.5,
                    waiting_on_step=0.25,
                    reachable_tokens=15,
                    copied_tokens=4,
                    queued_tokens=600,
                    pages_pinned=2,
                    pins_refused=1,
                    invalidated_pages=6,
                )
            ]
        )
        response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    lines = response.text.splitlines()
    for line in (
        'radixserve_requests_total{finish_reason="stop"} 2.0',
        'radixserve_requests_total{finish_reason="length"} 1.0',
        "radixserve_time_to_first_token_seconds_count 3.0",
        "radixserve_e2e_request_latency_seconds_count 3.0",
        f"radixserve_generated_tokens_total {2 * len(server.script) + 1}.0",
        f"radixserve_inter_token_latency_seconds_count {2 * len(server.script) - 2}.0",
        "radixserve_requests_running 3.0",
        "radixserve_kv_pages 5.0",
        "radixserve_tree_nodes 9.0",
        "radixserve_scheduler_cached_tokens_total 12.0",
        "radixserve_scheduler_step_seconds_total 1.5",
        "radixserve_step_age_seconds 0.25",
        "radixserve_page_size_tokens 16.0",
        "radixserve_scheduler_reachable_tokens_total 15.0",
        "radixserve_scheduler_copied_tokens_total 4.0",
        "radixserve_queued_tokens 600.0",
        "radixserve_kv_pages_pinned 2.0",
        "radixserve_scheduler_refused_pins_total 1.0",
        "radixserve_scheduler_invalidated_pages_total 6.0",
    ):
        assert line in lines, line


def test_every_field_of_stats_is_a_metric() -> None:
    assert GAUGES.keys() | COUNTERS.keys() == set(Stats.__struct_fields__) - {"tenants"}
    counted = set(TenantStats.__struct_fields__) - {"floor", "ceiling"}  # settings, not state
    assert TENANT_GAUGES.keys() | TENANT_COUNTERS.keys() == counted


async def tenant_samples(
    folder: Path, tenants: dict[str, TenantStats]
) -> dict[str, dict[str, float]]:
    """metric -> tenant -> value, as a scraper reads them."""
    server = Server(folder)
    server.engine.deliver([stats(tenants=tenants)])
    async with server.client() as client:
        text = (await client.get("/metrics")).text
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "tenant" in sample.labels:
                values = found.setdefault(sample.name, {})
                assert sample.labels["tenant"] not in values, "a series comes once"
                values[sample.labels["tenant"]] = sample.value
    return found


async def test_tenants_have_their_metrics(folder: Path) -> None:
    names = ["acme", "", 'quote " slash \\ line \n end', "\u00e4\u4e2d"]
    tenants = {name: TenantStats(i, 20, 0, 0, 300, 40, 500) for i, name in enumerate(names)}
    found = await tenant_samples(folder, tenants)
    assert found == {
        "radixserve_tenant_kv_tokens_cached": dict(zip(names, range(4), strict=True)),
        "radixserve_tenant_kv_tokens_running": dict.fromkeys(names, 20),
        "radixserve_tenant_prompt_tokens_total": dict.fromkeys(names, 300),
        "radixserve_tenant_cached_tokens_total": dict.fromkeys(names, 40),
        "radixserve_tenant_computed_tokens_total": dict.fromkeys(names, 500),
    }


async def test_the_hundred_and_first_tenant_is_one_of_the_others(folder: Path) -> None:
    names = ["other", *(f"t{i}" for i in range(1, 130))]
    tenants = {name: TenantStats(1, 1, 0, 0, 2, 1, 1) for name in names}
    found = await tenant_samples(folder, tenants)
    assert all(list(values) == names[:NAMED_TENANTS] for values in found.values())
    assert sum(found["radixserve_tenant_prompt_tokens_total"].values()) == 2 * len(names)
    assert found["radixserve_tenant_kv_tokens_cached"]["other"] == 31


async def test_probes_may_ask_for_the_head_alone(folder: Path) -> None:
    server = Server(folder)
    paths = {r.path for r in all_routes(server.app.routes) if "GET" in r.methods}
    assert paths >= {"/", "/health", "/metrics", "/v1/models", "/docs", "/openapi.json"}
    async with server.client() as client:
        for path in paths:
            whole, head = await client.get(path), await client.head(path)
            assert (head.status_code, head.content) == (whole.status_code, b""), path


def all_routes(routes: Iterable[Any]) -> list[Any]:
    """The routes of included routers too."""
    found = []
    for route in routes:
        router = getattr(route, "original_router", None)
        found += [route] if router is None else all_routes(router.routes)
    return found


async def test_every_route_says_what_is_wrong_in_its_dialect(folder: Path) -> None:
    server = Server(folder)
    routes = all_routes(server.app.routes)
    assert {r.path for r in routes} >= {COMPLETIONS, CHAT, "/tokenize", "/health", "/flush_cache"}
    async with server.client() as client:
        for route in routes:
            wrong = [await client.request("PATCH", route.path)]
            if "POST" in route.methods and route.path not in NO_BODY:
                wrong += [
                    await client.post(route.path, content=c) for c in (b"", b"[]", b"{", b"1")
                ]
            for got in wrong:
                assert 400 <= got.status_code < 500, (route.path, got.status_code)
                fault_of(route.path, got)
