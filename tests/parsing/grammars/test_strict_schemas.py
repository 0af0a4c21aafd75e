"""What schemas say and parsers read, where the two could fall apart."""

import json

import jsonschema
import pytest
from llguidance import LLMatcher

from radixserve.parsing.formats import FORMATS
from radixserve.parsing.grammars.forced import forced_calls
from radixserve.parsing.grammars.schema import Unenforceable
from radixserve.parsing.grammars.strict import strict_calls
from radixserve.parsing.tools import Tool
from tests.parsing.grammars.answers import Writer
from tests.parsing.grammars.test_strict import call_text
from tests.parsing.reading import read

STRING = {"type": "string"}
SPELLED = pytest.mark.parametrize("name", ["qwen3_xml", "gemma4", "lfm2", "deepseek_v4"])
TAGGED = pytest.mark.parametrize("name", ["qwen3_xml", "glm4", "minimax_m2", "deepseek_v4"])


def tool(name: str = "f", /, **properties: object) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(name, schema | {"additionalProperties": False}, strict=True)


def may_say(name: str, one: Tool, arguments: dict[str, object]) -> bool:
    """Whether a call may be said; what is read is it then."""
    format = FORMATS[name]
    writer = Writer(format, [one], special=False)
    if not writer.say(call_text(format, one.name, arguments)):
        return False
    assert writer.matcher.is_accepting()
    ((called, found),) = read(format, [writer.text], [one])[0].calls
    jsonschema.validate(found, dict(one.parameters or {}))
    return called == one.name and found == arguments


@TAGGED
def test_strings_within_json_end_no_argument(name: str) -> None:
    format = FORMATS[name]
    calls = format.calls
    one = tool(x={"type": "array", "items": {"anyOf": [STRING, {"type": "object"}]}}, y=STRING)
    line = "\n" if name == "qwen3_xml" else ""
    for text in ("<b> & </b>", "日", 'a "b" \\ \n', f"{calls.value_end} <"):
        assert may_say(name, one, {"x": [text, {text: None}], "y": "z"}), text
    for follow in (calls.key_open, calls.close, calls.value_end):
        text = f"{line}{calls.value_end} {follow}".removesuffix('"')
        for items in ([text], [{text: 1}], [{"k": [text]}]):
            assert not may_say(name, one, {"x": items, "y": "z"}), items


@TAGGED
def test_a_string_does_not_end_with_the_end_of_strings(name: str) -> None:
    """Which the parser takes for one end too many."""
    end = FORMATS[name].calls.value_end
    assert not may_say(name, tool(x=STRING | {"minLength": len(end)}), {"x": end})
    assert not may_say(name, tool(x={"enum": [end, "a"]}), {"x": end})
    assert may_say(name, tool(x={"enum": [end, "a"]}), {"x": "a"})


def test_a_string_is_no_cdata() -> None:
    for text, fits in (("<![CDATA[x", False), ("<![CDATA", True), ("x <![CDATA[ y", True)):
        assert may_say("minicpm5", tool(x=STRING), {"x": text}) == fits


@pytest.mark.parametrize(
    ("name", "key"), [("minimax_m2", 'q"q'), ("seed_oss", "<k>"), ("glm4", "k" * 300)]
)
def test_keys_that_have_no_place_in_a_tag(name: str, key: str) -> None:
    with pytest.raises(Unenforceable, match="no place in a tag"):
        strict_calls(FORMATS[name], [tool(**{key: STRING})], several=True, special_tokens={})


@SPELLED
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (STRING | {"minLength": 4, "maxLength": 2}, "minLength above maxLength"),
        ({"oneOf": [STRING, STRING | {"maxLength": 3}]}, "oneOf"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
        ({"enum": ["a", "bb"], "maxLength": 1}, "maxLength beside values"),
        ({"enum": ["a", "bb"], "not": {"const": "a"}}, "not beside values"),
        ({"enum": ["a", "b"], "const": "c"} | STRING, "allows nothing"),
        ({"type": "string", "anyOf": [{"type": "integer"}]}, "type beside others"),
    ],
)
def test_schemas_that_are_not_understood(name: str, schema: object, said: str) -> None:
    with pytest.raises(Unenforceable, match=said):
        strict_calls(FORMATS[name], [tool(x=schema)], several=True, special_tokens={})


@SPELLED
def test_schemas_that_are(name: str) -> None:
    null: dict[str, object] = {"x": None}
    one = tool(x={"anyOf": [STRING | {"maxLength": 2}, {"type": "string", "pattern": "^abcd$"}]})
    for text, fits in (("ab", True), ("abcd", True), ("abc", False)):
        assert may_say(name, one, {"x": text}) == fits
    assert may_say(name, tool(x={"oneOf": [{"type": "null"}, {"const": 5}]}), null)
    assert may_say(name, tool(x={"type": "integer", "enum": [5, 6], "format": "int32"}), {"x": 5})
    assert may_say(name, tool(x={"type": "array", "items": STRING, "maxItems": 1}), {"x": ["a"]})


@SPELLED
@pytest.mark.parametrize("literal", ["null", "None"])
def test_null_of_a_schema_of_openapi(name: str, literal: str) -> None:
    one = tool(x={"type": "number", "nullable": True})
    written = call_text(FORMATS[name], "f", {"x": 7.5}).replace("7.5", literal)
    writer = Writer(FORMATS[name], [one], special=False)
    if writer.say(written):
        assert read(FORMATS[name], [writer.text], [one])[0].calls == (("f", {"x": None}),)


@SPELLED
@pytest.mark.parametrize(
    "schema",
    [
        STRING | {"pattern": "^[a-c]{2}$", "minLength": 4},
        STRING | {"pattern": "b", "format": "ipv4"},
        {"type": "array", "minItems": 1, "items": STRING | {"pattern": r"^\d$", "maxLength": 0}},
    ],
)
def test_strings_that_nothing_fits_are_for_the_judge(name: str, schema: dict[str, object]) -> None:
    grammar = strict_calls(FORMATS[name], [tool(x=schema)], several=True, special_tokens={})
    assert "Unsatisfiable" in LLMatcher.validate_grammar(grammar)


@pytest.mark.parametrize("name", ["qwen3_xml", "lfm2"])
def test_strings_of_some_length_have_escapes(name: str) -> None:
    one = tool(x={"type": "array", "items": STRING | {"minLength": 2, "maxLength": 8}})
    for text in ("\\n", 'a\n"b', "it's", "\\\\", "\t\t", "\xa0\u2028"):
        assert may_say(name, one, {"x": [text]}), text
    assert not may_say(name, one, {"x": ["\n"]})
    assert not may_say(name, one, {"x": ["\\" * 9]})


def test_an_answer_that_is_cut_ends_no_string() -> None:
    """Though the end of a call stands there."""
    one = tool(x=STRING, y=STRING)
    for name, text in (
        ("minimax_m2", '<minimax:tool_call><invoke name="f"><parameter name="x">a</invoke>'),
        ("qwen3_xml", "<tool_call>\n<function=f>\n<parameter=x>\na\n</function>"),
    ):
        assert Writer(FORMATS[name], [one]).say(text)
        assert not read(FORMATS[name], [text], [one], cut=True)[0].calls
        assert not read(FORMATS[name], text, [one], cut=True)[0].calls


@pytest.mark.parametrize("name", ["gigachat", "qwen3_xml", "gemma4", "json"])
def test_a_tool_without_a_schema_takes_no_arguments(name: str) -> None:
    bare = Tool("f", None, strict=True)
    forced = forced_calls(FORMATS[name], [bare], several=False, special_tokens={})
    assert not LLMatcher.validate_grammar(forced.grammar)
    assert may_say(name, bare, {}) and not may_say(name, bare, {"x": 1})


def test_keys_that_no_schema_names_are_others() -> None:
    inner = {"type": "object", "properties": {"a/b": {"const": 1}}, "additionalProperties": STRING}
    one = tool(x=inner)
    for key, fits in (("a/b", False), ("a c", True), ("日", True), ('"', True), ("", True)):
        assert may_say("qwen3_xml", one, {"x": {key: "s"}}) == fits
    call = call_text(FORMATS["qwen3_xml"], "f", {"x": {"KEY": "s"}})
    for key in ("a\\/b", "\\u0061/b"):
        assert not Writer(FORMATS["qwen3_xml"], [one]).say(call.replace("KEY", key))
    assert json.loads('"a\\/b"') == "a/b"


def test_keys_of_gemma_are_bare_as_its_template_prints_them() -> None:
    for key in ("it's", "x/y", "k&r", "日", "$x", "a b"):
        assert may_say("gemma4", tool(**{key: {"type": "integer"}}), {key: 5}), key
