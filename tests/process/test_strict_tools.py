"""Strict tools through the engine: a model that knows nothing calls as their schemas say.

Its weights are random, so what it says is noise; the test makes it begin a call.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from radixserve.llm import LLM
from radixserve.messages import Sampling, pack
from radixserve.parsing.format import Format
from radixserve.parsing.formats import FORMATS
from radixserve.parsing.grammars.strict import strict_calls
from radixserve.parsing.tools import Tool
from radixserve.tokenizer.vocabulary import Vocabulary
from tests.checkpoints import IM_END
from tests.parsing.reading import read
from tests.process.test_exactness import engine

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Berlin", "Paris"]}, "days": {"enum": [1, 22]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [Tool("weather", SCHEMA, strict=True)]
PROMPT = list(range(20, 60))
SAID = "Well. <tool_call>"
ANSWER = 120


@pytest.fixture(scope="module")
def vocabulary(checkpoint: Path) -> Vocabulary:
    return Vocabulary(checkpoint)


@pytest.fixture(params=["hermes", "qwen3_xml"])
def format(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


@pytest.fixture
def grammar(vocabulary: Vocabulary, format: Format) -> str:
    return strict_calls(
        format,
        TOOLS,
        several=True,
        special_tokens=vocabulary.grammar_tokens,
    )


def begin_with(llm: LLM, tokens: list[int]) -> None:
    """From here on each answer begins with `tokens`, whatever the model wants."""
    sampler = llm.runner._sampler
    sample: Callable[..., object] = sampler.sample

    def made(logits, slots, positions):  # type: ignore[no-untyped-def]
        for row, position in enumerate(positions):
            at = position - len(PROMPT)
            if at < len(tokens):
                logits[row, tokens[at]] += 1e4
        return sample(logits, slots, positions)

    sampler.sample = made  # type: ignore[method-assign]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_calls_fit_in_every_choice_and_text_stays_free(
    checkpoint: Path, vocabulary: Vocabulary, format: Format, grammar: str, temperature: float
) -> None:
    llm = engine(checkpoint, max_running_requests=8)
    said = vocabulary.encode(SAID, add_special_tokens=False)
    letters = [t for t in range(3, 512) if vocabulary.token_bytes(t).isascii()]  # noise is no UTF-8
    asked = Sampling(seed=0, temperature=temperature, stop_ids=(IM_END,))
    asked = replace(asked, allowed_ids=pack([IM_END, *letters]))
    free = [replace(asked, seed=seed) for seed in range(4)]
    held = [replace(sampling, grammar=grammar) for sampling in free]
    before = llm.generate([PROMPT] * 8, free + held, 24)
    assert [a.tokens for a in before[:4]] == [a.tokens for a in before[4:]], "text is unaffected"
    begin_with(llm, said)
    answers = llm.generate([PROMPT] * 4, held, ANSWER)
    for answer in answers:
        text = b"".join(vocabulary.token_bytes(t) for t in answer.tokens if t != IM_END)
        whole = text.decode(errors="replace")
        found, complete = read(format, [whole], TOOLS, cut=answer.finish == "length")
        assert read(format, whole, TOOLS, cut=answer.finish == "length")[0] == found
        assert found.calls and complete[0] and found.content.startswith("Well.")
        for name, arguments in found.calls:
            assert name == "weather" and arguments.keys() == {"city", "days"}
            assert arguments["city"] in ("Berlin", "Paris") and arguments["days"] in (1, 22)
    if temperature:
        assert len({tuple(answer.tokens) for answer in answers}) > 1
