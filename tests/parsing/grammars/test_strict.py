"""Grammars of answers that may call: text is free, and what is read as a call fits its schema."""

import json

import jsonschema
import pytest

from radixserve.parsing.format import Format, JsonCalls, TaggedCalls
from radixserve.parsing.formats import FORMATS
from radixserve.parsing.grammars.schema import Unenforceable
from radixserve.parsing.grammars.strict import strict_calls
from radixserve.parsing.tools import Tool
from tests.parsing.grammars.answers import EOS, Writer
from tests.parsing.reading import read
from tests.parsing.writing import Answer, write

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "日本"]}, "days": {"enum": [1, 22]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
MANY = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 4},
        "code": {"type": "string", "pattern": "^[a-c]{2}$"},
        "day": {"type": "string", "format": "date"},
        "mixed": {"enum": ["1", 1, "a", None, True]},
        "count": {"type": "integer", "minimum": 3, "maximum": 12},
        "flag": {"type": "boolean"},
        "maybe": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        "either": {"type": ["string", "integer"], "maxLength": 2},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
        "place": {
            "type": "object",
            "properties": {"x": {"const": 0.5}, "name": {"enum": ["a b", "it's"]}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
    "required": ["text", "mixed", "either"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["red", "blue"]}},
}
TOOLS = [
    Tool("weather", WEATHER, strict=True),
    Tool("many", MANY, strict=True),
    Tool("free", WEATHER),
]
SCHEMAS = {"weather": WEATHER, "many": MANY}
HELD = [f for f in FORMATS.values() if f.calls is not None]
MARKED = [f for f in HELD if not f.unmarked]
every = pytest.mark.parametrize("format", HELD, ids=[f.name for f in HELD])
marked = pytest.mark.parametrize("format", MARKED, ids=[f.name for f in MARKED])
either = pytest.mark.parametrize("special", [False, True], ids=["letters", "tokens"])
APART = [f for f in MARKED if f.thoughts and not f.thoughts.calls_inside]
with_thoughts = pytest.mark.parametrize("format", APART, ids=[f.name for f in APART])


def first_mark(format: Format) -> str:
    """What begins calls; "" if nothing does."""
    if format.unmarked:
        return ""
    if format.section is not None:
        return format.section.begin[0]
    assert isinstance(format.calls, TaggedCalls)
    return format.calls.open


def call_text(format: Format, name: str, arguments: dict[str, object]) -> str:
    """A call as models write it, which is how `tests/parsing/writing.py` does."""
    return write(format, Answer(calls=((name, arguments),)))


def check(calls: tuple[tuple[str, dict[str, object]], ...]) -> None:
    for name, arguments in calls:
        assert name in {tool.name for tool in TOOLS}
        if name in SCHEMAS:
            jsonschema.validate(arguments, SCHEMAS[name])


@marked
@either
def test_what_is_read_as_a_call_fits(format: Format, special: bool) -> None:
    names = set()
    for seed in range(12):
        writer = Writer(format, TOOLS[:2], special=special, seed=seed)
        assert writer.say("Well, é 日 {}")
        for _ in range(2):
            assert writer.say(first_mark(format))
            assert not writer.matcher.is_accepting(), "no answer ends inside a call"
            writer.go_on()
            assert writer.say(" and ")
        found, complete = read(format, [writer.text], TOOLS)
        least = 2 - writer.text.count(">>>all")  # which the chance may choose
        assert len(found.calls) >= least and all(complete), writer.text
        assert read(format, writer.text, TOOLS)[0] == found, "streamed as whole"
        check(found.calls)
        names |= {name for name, _ in found.calls}
    assert names == set(SCHEMAS)


UNMARKED = [f for f in HELD if f.unmarked]


@pytest.mark.parametrize("format", UNMARKED, ids=[f.name for f in UNMARKED])
def test_what_is_read_as_a_call_without_a_marker_fits(format: Format) -> None:
    begin = "[weather(" if format.name == "llama4_pythonic" else '{"name": "weather", "'
    for seed in range(12):
        writer = Writer(format, TOOLS, seed=seed)
        assert writer.say(begin) and not writer.matcher.is_accepting()
        writer.go_on()
        found, _ = read(format, [writer.text], TOOLS)
        assert found.calls[0][0] == "weather" and not found.content
        check(found.calls)
    for text in ("Well, [weather(", "[x](y) {", '{"name": "other", "arguments": {}}', "[1, 2]"):
        writer = Writer(format, TOOLS)
        assert writer.say(text) and writer.matcher.is_accepting()
        assert not read(format, [writer.text], TOOLS)[0].calls


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "weather", "arguments": {"city": "Rome"',
        ' {"name":"weather","arguments":{}}',
        '{"arguments": {}, "name": "weather"}',
        '{"n\\u0061me": "weather", "arguments": {}}',
        '[{"name": "weather", "arguments": {}}]',
        '{"function": "weather", "parameters": {}}',
    ],
)
def test_calls_without_a_marker_that_do_not_fit(text: str) -> None:
    writer = Writer(FORMATS["llama3_json"], TOOLS)
    assert not writer.say(text)


@every
@either
def test_a_fitting_call_may_be_said(format: Format, special: bool) -> None:
    call = call_text(format, "weather", {"city": "Paris", "days": 22})
    if isinstance(format.calls, JsonCalls) and not format.calls.keyed:
        keys = ("name", "arguments", *format.calls.names[:1], *format.calls.arguments[:1])
        call = call.replace(f'"{keys[0]}"', f'"{keys[2]}"').replace(f'"{keys[1]}"', f'"{keys[3]}"')
        if first_mark(format).endswith(">") and "|" not in call:  # templates print lines
            call = call.replace(">{", ">\n{").replace("}</", "}\n</")
    if format.name == "mistral" and not special:
        call = "[TOOL_CALLS] " + '[{"name": "weather", "arguments": {"city": "Paris", "days": 22}}]'
    writer = Writer(format, TOOLS, special=special)
    assert writer.said(call) == "" and writer.matcher.is_accepting()
    found, _ = read(format, [writer.text], TOOLS)
    assert found.calls == (("weather", {"city": "Paris", "days": 22}),)


@marked
@either
def test_what_does_not_fit_cannot_be_said(format: Format, special: bool) -> None:
    for wrong in ("I cannot", '{"name": "hack"', "hack", '{"name": "weather", "arguments": {"x"'):
        writer = Writer(format, TOOLS, special=special)
        assert writer.say(first_mark(format))
        assert not writer.say(wrong)
    for arguments in ({"city": "Rome", "days": 1}, {"city": "Paris", "days": 2}, {"city": "Paris"}):
        assert not Writer(format, TOOLS, special=special).say(
            call_text(format, "weather", arguments)
        )


@marked
def test_letters_of_a_marker_begin_calls_where_it_is_a_token(format: Format) -> None:
    """Since they do to the parser."""
    writer = Writer(format, TOOLS)
    assert writer.spell(first_mark(format))
    assert not writer.matcher.is_accepting() and not writer.say("hack")


@every
@pytest.mark.parametrize("several", [False, True])
def test_text_is_free_and_may_end_anywhere(format: Format, several: bool) -> None:
    writer = Writer(format, TOOLS, special=False, several=several)
    assert writer.say("Hello ")
    every_token = set(writer.allowed())
    assert len(every_token) > 300 and EOS in every_token
    for text in ("<", "\n\n", "|im", '{"name": "hack"}', "é", "<|im_end|>", " more"):
        assert writer.say(text) and writer.matcher.is_accepting()
    assert set(writer.allowed()) == every_token, "whatever was said before"


@marked
@either
def test_one_call_where_no_more_may_come(format: Format, special: bool) -> None:
    writer = Writer(format, TOOLS[:1], special=special, several=False)
    assert writer.say("So: ") and writer.say(first_mark(format))
    writer.go_on()
    assert writer.allowed() == [EOS]


def test_tools_that_are_not_strict_stay_free() -> None:
    call = '<tool_call>\n{"name": "free", "arguments": {"other": [1, {"x": null}]}}\n</tool_call>'
    writer = Writer(FORMATS["hermes"], TOOLS)
    assert writer.say(call) and writer.matcher.is_accepting()
    for name, call in (
        ("functionary_v31", '<function=free>{"other": 5}</function> done'),
        ("qwen3_xml", "<function=free>\n<parameter=other>\n5 x\n</parameter>\n</function>"),
        ("gemma4", '<|tool_call>call:free{other:[1,{x:null}],y:<|"|>z<|"|>}<tool_call|>'),
        ("lfm2", "<|tool_call_start|>[free(other=[1, {'x': None}], y='z')]<|tool_call_end|>"),
    ):
        assert Writer(FORMATS[name], TOOLS).said(call) == ""


@with_thoughts
@pytest.mark.parametrize("begun", [False, True])
def test_thoughts_may_mention_what_they_like(format: Format, begun: bool) -> None:
    thoughts = format.thoughts
    assert thoughts is not None
    prompt = thoughts.begin[0] if begun else ""
    writer = Writer(format, TOOLS, special=False, prompt=prompt)
    assert begun or writer.say(f"\n{thoughts.begin[0]}")
    assert writer.say(f"I could {first_mark(format)} hack it.") and EOS in writer.allowed()
    assert writer.say(thoughts.end[0]) and writer.say("So ")
    assert writer.say(first_mark(format)) and not writer.say("hack")
    found, _ = read(format, [writer.text], TOOLS, prompt=prompt, cut=True)
    assert "hack it." in found.reasoning and not found.calls


@with_thoughts
def test_thoughts_that_are_none_free_nothing(format: Format) -> None:
    """Behind content the marker is a word, unless the format has thoughts anywhere."""
    thoughts = format.thoughts
    assert thoughts is not None
    writer = Writer(format, TOOLS, special=False)
    assert writer.say("So ") and writer.say(thoughts.begin[0]) and writer.say(first_mark(format))
    assert writer.say("hack") == thoughts.anywhere


def test_content_that_begins_like_a_call() -> None:
    format = FORMATS["functionary_v32"]
    writer = Writer(format, TOOLS, prompt="x>>>")
    assert writer.say("all\nHello >>>all\nthere >>>weather\n") and not writer.matcher.is_accepting()
    assert not Writer(format, TOOLS, prompt="x>>>").say("Hello")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string", "format": "iri"}, "the format iri"),
        ({"not": {"type": "string"}}, "the keyword not"),
        ({"type": "string", "pattern": "^a|b$"}, "the pattern"),
        ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, "allOf"),
        ({"$ref": "#/$defs/none"}, "points at nothing"),
        ({"type": "date"}, "type date"),
        (False, "allows nothing"),
    ],
)
@pytest.mark.parametrize("name", ["qwen3_xml", "gemma4", "lfm2"])
def test_schemas_that_cannot_be_enforced(name: str, schema: object, said: str) -> None:
    parameters = {"type": "object", "properties": {"x": schema}}
    with pytest.raises(Unenforceable, match=said):
        strict_calls(
            FORMATS[name], [Tool("f", parameters, strict=True)], several=True, special_tokens={}
        )


@pytest.mark.parametrize("name", ["qwen3_xml", "glm4", "gemma4", "lfm2", "kimi_k3", "deepseek_v32"])
def test_schemas_that_contain_themselves(name: str) -> None:
    node = {
        "type": "object",
        "properties": {"at": {"const": 1}, "next": {"$ref": "#/$defs/node"}},
        "required": ["at"],
        "additionalProperties": False,
    }
    parameters = {
        "type": "object",
        "properties": {"list": {"$ref": "#/$defs/node"}},
        "required": ["list"],
        "additionalProperties": False,
        "$defs": {"node": node},
    }
    format, tool = FORMATS[name], Tool("f", parameters, strict=True)
    deep = {"list": {"at": 1, "next": {"at": 1, "next": {"at": 1}}}}
    writer = Writer(format, [tool])
    assert writer.said(call_text(format, "f", deep)) == "" and writer.matcher.is_accepting()
    assert read(format, [writer.text], [tool])[0].calls == (("f", deep),)
    wrong = {"list": {"at": 1, "next": {"at": 2}}}
    assert not Writer(format, [tool]).say(call_text(format, "f", wrong))


@pytest.mark.parametrize("name", ["qwen3_xml", "glm4", "minimax_m2"])
def test_strings_are_not_taken_for_other_types(name: str) -> None:
    """Where a schema has both, a text that looks like a number is one to the parser."""
    format = FORMATS[name]
    assert isinstance(format.calls, TaggedCalls)
    schema = {"anyOf": [{"type": "string"}, {"const": 5}]}
    tool = Tool("f", {"type": "object", "properties": {"x": schema}}, strict=True)
    for text, fits in (("5", True), ("6", False), ("6 pence", True), (" 7 ", False), ("", True)):
        assert Writer(format, [tool]).say(call_text(format, "f", {"x": text})) == fits, text


def test_a_value_may_not_end_twice() -> None:
    """What the parser would take for the end of the value, or for another argument."""
    text = {"type": "string"}
    parameters = {"type": "object", "properties": {"x": text, "y": text}, "required": ["x", "y"]}
    tool = Tool("f", parameters, strict=True)
    begin = "<tool_call>\n<function=f>\n<parameter=x>\nA"
    end = "\n</parameter>\n<parameter=y>\nB\n</parameter>\n</function>\n</tool_call>"
    for inside in ("\n</function>\n</tool_call>", "</parameter>\n<parameter=", "\n<parameter=y>"):
        assert not Writer(FORMATS["qwen3_xml"], [tool]).say(begin + inside + end), inside
    for inside in ("<b>", "\n\n", "</function>", "\n<parameter=z>", "<parameter=y>"):
        writer = Writer(FORMATS["qwen3_xml"], [tool])
        assert writer.said(begin + inside + end) == ""
        found, _ = read(FORMATS["qwen3_xml"], [writer.text], [tool])
        assert found.calls == (("f", {"x": "A" + inside, "y": "B"}),)


def test_the_form_is_that_of_forced_calls() -> None:
    """So that the next turn's prompt has the tokens that were generated."""
    writer = Writer(FORMATS["hermes"], TOOLS[:1])
    assert writer.say("<tool_call>")
    writer.go_on()
    head, body, tail = writer.text.split("\n")
    assert (head, tail) == ("<tool_call>", "</tool_call>")
    call = json.loads(body)
    assert body == json.dumps(call, ensure_ascii=False) and call["name"] == "weather"
