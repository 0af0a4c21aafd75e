"""Grammars of calls and the parser fit each other: what the one allows, the other reads."""

import json
import random

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from radixserve.parsing.events import CallArguments, CallBegin, CallEnd, Content
from radixserve.parsing.formats import FORMATS
from radixserve.parsing.grammars.forced import forced_calls
from radixserve.parsing.parser import Parser
from radixserve.parsing.tools import Tool
from tests.tokenizer import folders

TOOLS = [
    Tool("get_weather", {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", 'a "b" \\ c', "日本"]}, "days": {"enum": [1, 2]}},
        "required": ["city"],
        "additionalProperties": False,
    }),
    Tool("stop"),
    Tool("nested", {
        "$defs": {"kind": {"enum": ["x", "y"]}},
        "type": "object",
        "properties": {
            "kinds": {"type": "array", "items": {"$ref": "#/$defs/kind"}, "maxItems": 2},
        },
        "required": ["kinds"],
        "additionalProperties": False,
    }),
]  # fmt: skip
STOP_IS_EMPTY = {"properties": {}, "additionalProperties": False, "type": "object"}
TOOLS[1] = Tool("stop", STOP_IS_EMPTY)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = folders.byte_level(tmp_path_factory.mktemp("tokens"))
    return LLTokenizer((folder / "tokenizer.json").read_text(), eos_token=0)


def answer(tokenizer, grammar, seed):
    """A random text that the grammar allows."""
    chance = random.Random(seed)
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = []
    while True:
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        token = int(chance.choice(allowed.tolist()))
        if token == tokenizer.eos_token:
            return tokenizer.decode_str(tokens)
        assert matcher.consume_token(token)
        tokens.append(token)


def read(forced, text, tools):
    parser = Parser(forced.format, tools)
    events = parser.feed(text) + parser.finish()
    calls = [event.name for event in events if isinstance(event, CallBegin)]
    arguments = [""] * len(calls)
    for event in events:
        if isinstance(event, CallArguments):
            arguments[event.index] += event.text
    assert not any(isinstance(event, Content) and event.text.strip() for event in events), text
    assert all(event.complete for event in events if isinstance(event, CallEnd))
    return [(name, json.loads(text)) for name, text in zip(calls, arguments, strict=True)]


NAMES = [None, *(f.name for f in FORMATS.values() if f.calls is not None or f.harmony)]
BARE = {None, "json", "gpt_oss", "functionary_v32", "minicpm5"}  # no marker, or it may be begun


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_what_the_grammar_allows_is_read_as_calls(tokenizer, name, several):
    format = FORMATS[name] if name else None
    forced = forced_calls(format, TOOLS, several=several, special_tokens={})
    assert forced.format is (FORMATS["json"] if name in BARE else format)
    seen = set()
    for seed in range(25):
        calls = read(forced, answer(tokenizer, forced.grammar, seed), TOOLS)
        assert len(calls) >= 1 and (several or len(calls) == 1)
        for called, arguments in calls:
            seen.add(called)
            if called == "get_weather":
                assert arguments["city"] in ("Paris", 'a "b" \\ c', "日本")
            if called == "nested":
                assert set(arguments["kinds"]) <= {"x", "y"}
    assert seen == {"get_weather", "stop", "nested"}


def test_one_named_tool_is_the_only_one(tokenizer):
    forced = forced_calls(FORMATS["hermes"], TOOLS[:1], several=False, special_tokens={})
    for seed in range(5):
        text = answer(tokenizer, forced.grammar, seed)
        assert text.startswith("<tool_call>\n{") and text.endswith("}\n</tool_call>")
        ((name, _),) = read(forced, text, TOOLS)
        assert name == "get_weather"


def test_special_tokens_are_named_by_their_ids():
    forced = forced_calls(
        FORMATS["hermes"],
        TOOLS,
        several=False,
        special_tokens={"<tool_call>": 7, "</tool_call>": 8},
    )
    assert '<[7]> "\\n" call "\\n" <[8]>' in forced.grammar
    assert not LLMatcher.validate_grammar(forced.grammar)


def test_a_schema_that_the_own_format_cannot_enforce_is_enforced_in_json(tokenizer):
    odd = {"type": "object", "properties": {"a": {"allOf": [{"enum": ["x", "y"]}, {"const": "y"}]}}}
    tools = [Tool("f", odd | {"required": ["a"], "additionalProperties": False})]
    forced = forced_calls(FORMATS["qwen3_xml"], tools, several=False, special_tokens={})
    assert forced.format is FORMATS["json"]
    assert read(forced, answer(tokenizer, forced.grammar, 0), tools) == [("f", {"a": "y"})]


def test_a_schema_that_cannot_be_honoured_is_for_the_judge():
    odd = [Tool("f", {"type": "object", "properties": {"a": {"pattern": "(?=x)"}}})]
    forced = forced_calls(None, odd, several=False, special_tokens={})
    assert LLMatcher.validate_grammar(forced.grammar)
