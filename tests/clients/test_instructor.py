"""instructor: a named tool as the form of the answer, and its retry, which branches off it."""

from typing import Any

from tests.clients.conftest import MODEL, Turns, package, place


def test_a_retry(turns: Turns) -> None:
    instructor, openai, pydantic = map(package, ("instructor", "openai", "pydantic"))
    seen: list[Any] = []

    @pydantic.field_validator("city")
    def check(value: str) -> str:
        seen.append(value)
        if len(seen) == 1:
            raise ValueError("look again")
        return value

    with openai.OpenAI(max_retries=0) as client:
        answer, raw = instructor.from_openai(client).create_with_completion(
            model=MODEL,
            messages=[{"role": "user", "content": "Where does it rain?"}],
            response_model=place(check=check),
            max_retries=2,
            max_tokens=48,
        )
    assert answer.city in ("Paris", "Oslo") and len(seen) == 2
    before, after = turns(2)
    assert raw.usage.prompt_tokens_details.cached_tokens >= after.cached >= before.prompt
