"""What a scheduler counts; numbers that only grow."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    aborted: int = 0
    finished: int = 0
    rejected: int = 0
    step_seconds: float = 0.0
