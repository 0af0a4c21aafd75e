"""What models really wrote, of the public suite canitoolcall, against grammars of their tools.

Most of it is allowed. The rest spells markers in its arguments, which are other tokens there than
in this test, leaves tags out, or spaces its JSON in another way.
"""

from collections import Counter

import jsonschema
import pytest

pytest.importorskip(
    "canitoolcall", reason="canitoolcall is not installed: pip install -r requirements/test.txt"
)

from canitoolcall.fixtures import Fixture, load_fixtures

from radixserve.parsing.tools import Tool
from tests.parsing.canitoolcall_adapter import format_of
from tests.parsing.grammars.answers import Writer
from tests.parsing.reading import read

CALLING = [
    fixture
    for fixture in load_fixtures()
    if fixture.expected is not None
    and fixture.expected.tool_calls
    and not fixture.models[0].startswith("mistralai/Mistral-7B")  # whose vocabulary has no [ARGS]
]
ALLOWED = {
    "deepseek": 59,
    "gemma4": 32,
    "glm": 39,
    "gpt-oss": 30,
    "kimi": 28,
    "llama": 21,
    "mistral": 26,
    "qwen3-hermes": 27,
    "qwen3-xml": 42,
}


def tools_of(fixture: Fixture) -> list[Tool]:
    functions = [tool.get("function", tool) for tool in fixture.tools]
    return [Tool(f["name"], f.get("parameters"), strict=True) for f in functions]


def is_allowed(fixture: Fixture) -> bool:
    """Whether the grammar allows it; and if so, that its calls fit."""
    format, tools = format_of(fixture.models[0]), tools_of(fixture)
    prompt = fixture.generation_prompt or ""
    writer = Writer(format, tools, prompt=prompt)
    if writer.said(fixture.raw_output):
        return False
    found, _ = read(format, [writer.text], tools, prompt=prompt, cut=True)
    schemas = {tool.name: tool.parameters for tool in tools}
    for name, arguments in found.calls:
        jsonschema.validate(arguments, schemas[name] or {})
    return True


def test_most_of_it_is_allowed() -> None:
    allowed = Counter(fixture.family for fixture in CALLING if is_allowed(fixture))
    assert allowed == ALLOWED
