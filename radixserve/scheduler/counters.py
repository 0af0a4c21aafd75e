"""What a scheduler counts; numbers that only grow, but for the pace."""

from collections import defaultdict
from dataclasses import dataclass, field

PACE_WEIGHT = 1 / 16  # of the latest step in the pace


@dataclass(slots=True)
class TenantCounters:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0


@dataclass(slots=True)
class Counters:
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reachable_tokens: int = 0
    copied_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    aborted: int = 0
    finished: int = 0
    rejected: int = 0
    pins_refused: int = 0
    step_seconds: float = 0.0
    pace: float = 0.0  # seconds per computed token, of late
    tenants: defaultdict[str, TenantCounters] = field(
        default_factory=lambda: defaultdict(TenantCounters)
    )

    def step_done(self, seconds: float, tokens: int) -> None:
        self.step_seconds += seconds
        if tokens:
            latest = seconds / tokens
            self.pace += (latest - self.pace) * (PACE_WEIGHT if self.pace else 1.0)

    def prompt_done(self, tenant: str, prompt: int, cached: int, reachable: int) -> None:
        """A prompt is computed: so many tokens, of which so many were cached."""
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.reachable_tokens += max(cached, reachable)
        self.tenants[tenant].prompt_tokens += prompt
        self.tenants[tenant].cached_tokens += cached
