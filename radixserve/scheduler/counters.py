"""What a scheduler counts; numbers that only grow, but for the recent ones."""

from collections import defaultdict
from dataclasses import dataclass, field

KEPT = 0.95  # of the earlier steps in the pace, at each step


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
    recent_seconds: float = 0.0  # of the latest steps, older ones count less
    recent_tokens: float = 0.0
    tenants: defaultdict[str, TenantCounters] = field(
        default_factory=lambda: defaultdict(TenantCounters)
    )

    @property
    def pace(self) -> float:
        """Seconds per computed token, of late."""
        return self.recent_seconds / self.recent_tokens if self.recent_tokens else 0.0

    def step_done(self, seconds: float, tokens: int) -> None:
        self.step_seconds += seconds
        self.recent_seconds = self.recent_seconds * KEPT + seconds
        self.recent_tokens = self.recent_tokens * KEPT + tokens

    def prompt_done(self, tenant: str, prompt: int, cached: int, reachable: int) -> None:
        """A prompt is computed: so many tokens, of which so many were cached."""
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.reachable_tokens += max(cached, reachable)
        self.tenants[tenant].prompt_tokens += prompt
        self.tenants[tenant].cached_tokens += cached
