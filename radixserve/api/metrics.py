"""`GET /metrics`: counters and histograms of this front's requests, gauges from the last `Stats`.

A request here is one choice: with n choices a prompt counts n times, as the engine runs it.
`radixserve_cached_tokens_total` grows by exactly what `usage` reports for a request with n = 1.
"""

from collections.abc import Iterable, Mapping

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from radixserve.api.openapi import probe
from radixserve.messages import Ready, Stats, TenantStats
from radixserve.tokenizer.engine import Engine

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_SECONDS = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0)
TOKENS = tuple(float(4**n) for n in range(11))  # 1 to a million

GAUGES = {  # field of Stats -> name, help
    "running": ("requests_running", "requests in the running batch"),
    "waiting": ("requests_waiting", "requests in the queue"),
    "pages_total": ("kv_pages", "K/V pages of the pool"),
    "pages_free": ("kv_pages_free", "pages that hold nothing"),
    "pages_tree": ("kv_pages_tree", "pages held by the radix tree"),
    "pages_evictable": ("kv_pages_evictable", "pages of the tree that no request holds"),
    "nodes": ("tree_nodes", "nodes of the radix tree"),
    "queued_tokens": ("queued_tokens", "uncached prompt tokens of the requests in the queue"),
    "pages_pinned": ("kv_pages_pinned", "pages of the tree that pins keep"),
    "waiting_on_step": ("step_age_seconds", "age of the oldest step without a result"),
}
COUNTERS = {
    "steps": ("scheduler_steps", "forward passes"),
    "step_seconds": ("scheduler_step_seconds", "time in forward passes, as the worker measured"),
    "prompt_tokens": (
        "scheduler_prompt_tokens",
        "prompt tokens, counted when a prompt is complete",
    ),
    "cached_tokens": ("scheduler_cached_tokens", "of those, not computed"),
    "reachable_tokens": (
        "scheduler_reachable_tokens",
        "prompt tokens cached, or that would be if nothing had been evicted",
    ),
    "copied_tokens": ("scheduler_copied_tokens", "of those cached, copied from part of a page"),
    "computed_tokens": ("scheduler_computed_tokens", "tokens computed, re-computation included"),
    "generated_tokens": ("scheduler_generated_tokens", "tokens sampled"),
    "evicted_pages": ("scheduler_evicted_pages", "pages evicted from the tree"),
    "invalidated_pages": ("scheduler_invalidated_pages", "pages that invalidations took"),
    "pins_refused": ("scheduler_refused_pins", "pins that were refused"),
    "preemptions": ("scheduler_preemptions", "requests put back into the queue"),
    "aborted": ("scheduler_aborted_requests", "requests aborted"),
    "finished": ("scheduler_finished_requests", "requests finished"),
    "rejected": ("scheduler_rejected_requests", "requests rejected"),
}
TENANT_GAUGES = {  # field of TenantStats -> name, help
    "cached": ("tenant_kv_tokens_cached", "tokens in the radix tree, by tenant"),
    "running": ("tenant_kv_tokens_running", "tokens in running requests' own pages, by tenant"),
}
TENANT_COUNTERS = {
    "prompt_tokens": (
        "tenant_prompt_tokens",
        "prompt tokens, counted when a prompt is complete, by tenant",
    ),
    "cached_tokens": ("tenant_cached_tokens", "of those, not computed, by tenant"),
    "computed_tokens": ("tenant_computed_tokens", "tokens computed, by tenant"),
}
NAMED_TENANTS = 100  # most tenants with series of their own, the first ones that came
OTHER = "other"  # the label of all the rest together, and of who has that name


class Metrics:
    """The observer of an `Engine`, in Prometheus' terms. One registry for each server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "radixserve_requests",
            "ended requests (stop, length, abort, error, or why they were rejected)",
            ["finish_reason"],
            registry=registry,
        )
        self._prompt = Counter(
            "radixserve_prompt_tokens", "prompt tokens of requests", registry=registry
        )
        self._cached = Counter(
            "radixserve_cached_tokens", "prompt tokens found in the cache", registry=registry
        )
        self._generated = Counter(
            "radixserve_generated_tokens", "tokens of answers", registry=registry
        )
        self._prompt_length = Histogram(
            "radixserve_prompt_length_tokens",
            "length of prompts",
            buckets=TOKENS,
            registry=registry,
        )
        self.ahead = AheadMetrics(registry)
        self._ttft = self._seconds("time_to_first_token", "time to the first token", SECONDS)
        self._itl = self._seconds("inter_token_latency", "time between tokens", TOKEN_SECONDS)
        self._e2e = self._seconds("e2e_request_latency", "time to the end of a request", SECONDS)

    def _seconds(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"radixserve_{name}_seconds", text, buckets=buckets, registry=self.registry
        )

    def first_tokens(self, seconds: float, prompt: int, cached: int) -> None:
        self._ttft.observe(seconds)
        self._prompt.inc(prompt)
        self._prompt_length.observe(prompt)
        self._cached.inc(cached)

    def more_tokens(self, seconds: float, count: int) -> None:
        for _ in range(count):
            self._itl.observe(seconds / count)

    def generated(self, count: int) -> None:
        self._generated.inc(count)

    def finished(self, seconds: float, reason: str) -> None:
        self._requests.labels(reason).inc()
        self._e2e.observe(seconds)


class AheadMetrics:
    """The observer of prompts that no client sent: see `api/history/ahead.py`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._computed = Counter(
            "radixserve_ahead_tokens",
            "tokens of conversations' next prompts, computed before they came",
            registry=registry,
        )

    def first_tokens(self, seconds: float, prompt: int, cached: int) -> None:
        self._computed.inc(prompt - cached)

    def more_tokens(self, seconds: float, count: int) -> None: ...

    def generated(self, count: int) -> None: ...

    def finished(self, seconds: float, reason: str) -> None: ...


class EngineCollector:
    """Turns the last `Stats` and `Ready` of an engine into metrics when they are scraped."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "radixserve_healthy", "1 if requests can be served", value=not self._engine.trouble()
        )
        if self._engine.ready:
            yield from _limits(self._engine.ready)
        if self._engine.stats:
            yield from _state(self._engine.stats)


def _limits(ready: Ready) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "radixserve_page_size_tokens",
        "tokens per K/V page; shorter prefixes are not reused",
        value=ready.page_size,
    )
    yield GaugeMetricFamily(
        "radixserve_max_total_tokens",
        "most tokens of one request, prompt and answer",
        value=ready.max_total_tokens,
    )


def _state(stats: Stats) -> Iterable[Metric]:
    for field, (name, text) in GAUGES.items():
        yield GaugeMetricFamily(f"radixserve_{name}", text, value=getattr(stats, field))
    for field, (name, text) in COUNTERS.items():
        yield CounterMetricFamily(f"radixserve_{name}", text, value=getattr(stats, field))
    yield from _tenants(stats.tenants)


def _tenants(tenants: Mapping[str, TenantStats]) -> Iterable[Metric]:
    """One series for each tenant and metric. `tenants` is in order of appearance."""
    groups: dict[str, list[TenantStats]] = {}
    for place, (tenant, stats) in enumerate(tenants.items()):
        groups.setdefault(tenant if place < NAMED_TENANTS else OTHER, []).append(stats)
    family: GaugeMetricFamily | CounterMetricFamily
    for kind, fields in (
        (GaugeMetricFamily, TENANT_GAUGES),
        (CounterMetricFamily, TENANT_COUNTERS),
    ):
        for field, (name, text) in fields.items():
            family = kind(f"radixserve_{name}", text, labels=["tenant"])
            for tenant, group in groups.items():
                family.add_metric([tenant], sum(getattr(stats, field) for stats in group))
            yield family


def routes(metrics: Metrics, engine: Engine) -> APIRouter:
    router = APIRouter()
    metrics.registry.register(EngineCollector(engine))

    @probe(router, "/metrics", response_class=PlainTextResponse)
    async def scrape() -> Response:
        """Prometheus metrics."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router
