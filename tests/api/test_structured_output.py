"""What an answer has to fit, under all the names that clients have for it."""

from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from tests.api.fakes import Server
from tests.api.responding import RESPONSES
from tests.api.sending import CHAT, COMPLETIONS, MESSAGES, answer, post

pytestmark = pytest.mark.anyio
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
NAMED = {"name": "out", "strict": True, "schema": SCHEMA}
FITS = '{"n": 12}'
ASKED: list[tuple[dict[str, Any], str, str]] = [  # fields, what fits, what does not
    ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, FITS, '{"m"'),
    ({"response_format": {"type": "json_object"}}, '{"m": 1}', "["),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, FITS, '{"m"'),
    ({"response_format": {"type": "regex", "pattern": "a+b"}}, "aab", "b"),
    ({"response_format": {"type": "grammar", "grammar": 'start: "x" | "y"'}}, "y", "z"),
    ({"structured_outputs": {"json": SCHEMA}}, FITS, '{"m"'),
    ({"structured_outputs": {"json_object": True}}, '{"m": 1}', "["),
    ({"structured_outputs": {"regex": "[0-9]{2}"}}, "42", "4x"),
    ({"structured_outputs": {"choice": ["yes", 'no "way"']}}, 'no "way"', "maybe"),
    ({"structured_outputs": {"grammar": 'start: "x"'}}, "x", "y"),
    ({"guided_json": SCHEMA}, FITS, '{"m"'),
    ({"guided_json": '{"type": "array"}'}, "[]", "{"),
    ({"guided_regex": "a{2}"}, "aa", "b"),
    ({"guided_choice": ["é", "b"]}, "é", "c"),
    ({"guided_grammar": 'start: "x"'}, "x", "y"),
    ({"json_schema": SCHEMA}, FITS, '{"m"'),
    ({"regex": "(yes|no)"}, "no", "x"),
    ({"ebnf": 'start: "x"'}, "x", "y"),
    ({"grammar": 'start: "x"'}, "x", "y"),
]


def fits(grammar: str, text: str, folder: Path) -> bool:
    """Whether the text is one that the grammar allows, whole."""
    tokenizer = LLTokenizer((folder / "tokenizer.json").read_text(), eos_token=0)
    matcher = LLMatcher(tokenizer, grammar)
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("fields", "right", "wrong"), ASKED, ids=str)
async def test_every_name_becomes_a_grammar(
    folder: Path, route: str, fields: dict[str, Any], right: str, wrong: str
) -> None:
    server = Server(folder)
    async with server.client() as client:
        await answer(client, route, n=2, **fields)
    grammars = {submit.sampling.grammar for submit in server.scheduler.submits}
    (grammar,) = grammars
    assert fits(grammar, right, folder) and not fits(grammar, wrong, folder)


GO: dict[str, Any] = {"type": "function", "function": {"name": "go"}}
CALL = '<tool_call>\n{"name": "go", "arguments": {"to": "x"}}\n</tool_call>'
MAY_CALL: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": NAMED}, "tools": [GO]}),
    (
        RESPONSES,
        {
            "prompt": None,
            "input": "hi",
            "text": {"format": {"type": "json_schema", **NAMED}},
            "tools": [{"type": "function", "name": "go"}],
        },
    ),
    (
        MESSAGES,
        {
            "output_config": {"format": {"type": "json_schema", **NAMED}},
            "tools": [{"name": "go", "input_schema": {}}],
        },
    ),
]


@pytest.mark.parametrize(("route", "fields"), MAY_CALL, ids=str)
@pytest.mark.parametrize("parser", ["hermes", "qwen3_xml"])
async def test_an_answer_with_a_format_may_call_tools(
    folder: Path, route: str, fields: dict[str, Any], parser: str
) -> None:
    """Where a grammar can tell calls from texts; agents send their format with every turn."""
    server = Server(folder, FITS, tool_call_parser=parser)
    async with server.client() as client:
        await answer(client, route, **fields)
    grammar = server.scheduler.submits[0].sampling.grammar
    assert fits(grammar, FITS, folder) and not fits(grammar, "Hello", folder)
    assert fits(grammar, CALL, folder) is (parser == "hermes")
    assert not fits(grammar, CALL.replace("go", "stop"), folder)


async def test_nothing_asked_is_no_grammar(folder: Path) -> None:
    server = Server(folder)
    async with server.client() as client:
        for fields in ({}, {"response_format": {"type": "text"}}, {"grammar": ""}, {"ebnf": None}):
            await answer(client, CHAT, **fields)
    assert {submit.sampling.grammar for submit in server.scheduler.submits} == {""}


NO_SCHEMA = {"type": "json_schema", "json_schema": {}}
UNKNOWN = {"type": "object", "propertyNames": {"minLength": 3}, "not": {}}
DEEP: dict[str, Any] = {}
for _ in range(400):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
WRONG: list[tuple[dict[str, Any], str | None]] = [
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": NO_SCHEMA}, "response_format.json_schema"),
    ({"response_format": {"type": "yaml"}}, "response_format"),
    ({"response_format": {"type": "regex"}}, "response_format"),
    ({"response_format": {"type": "json_object", "schema": 3}}, "response_format"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "[1]"}, "guided_json"),
    ({"guided_json": {"type": "no-such-type"}}, "guided_json"),
    ({"guided_json": {"$ref": "http://elsewhere/x.json"}}, "guided_json"),
    ({"guided_json": UNKNOWN}, "guided_json"),
    ({"guided_regex": "(a"}, "guided_regex"),
    ({"guided_regex": "(?=a)"}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": [1]}, "guided_choice[0]"),
    ({"guided_grammar": "start: unknown"}, "guided_grammar"),
    ({"structured_outputs": {"choices": ["a"]}}, "structured_outputs"),
    ({"regex": "a", "guided_choice": ["b"]}, None),
    ({"regex": "a", "response_format": {"type": "json_object"}}, None),
    ({"grammar": "start: /" + "a" * (1 << 20) + "/"}, "grammar"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: str(value)[:60])
async def test_what_cannot_be_honoured_is_refused(
    folder: Path, fields: dict[str, Any], param: str | None
) -> None:
    server = Server(folder)
    async with server.client() as client:
        response = await post(client, CHAT, **fields)
    error = response.json()["error"]
    assert response.status_code == 400, response.text
    assert error["message"] and (param is None or error["param"] == param)
    assert not server.scheduler.submits


async def test_a_deep_schema_ends_in_an_answer(folder: Path) -> None:
    server = Server(folder)
    async with server.client() as client:
        response = await post(client, CHAT, guided_json=DEEP)
    assert response.status_code in (200, 400)
