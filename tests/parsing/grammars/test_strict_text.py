"""Free text and strings in grammars of calls: white space as parsers have it, and no limits."""

import pytest

from radixserve.parsing.formats import FORMATS
from radixserve.parsing.harmony import START
from radixserve.parsing.tools import Tool
from tests.parsing.grammars.answers import Writer
from tests.parsing.reading import read

STRING = {"type": "string"}
NUMBER = {"anyOf": [STRING, {"const": 5}]}


def tool(**properties: object) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool("f", schema | {"additionalProperties": False}, strict=True)


@pytest.mark.parametrize("space", ["", " ", "\x1c", "\x1f\n", "\x85", "\u2028", "\u3000"])
def test_white_space_is_what_it_is_to_parsers(space: str) -> None:
    wrong = space + '{"name": "f", "arguments": {"x": 1}}'
    assert read(FORMATS["llama3_json"], [wrong], [tool(x=STRING)])[0].calls
    assert not Writer(FORMATS["llama3_json"], [tool(x=STRING)]).say(wrong)
    call = f"<tool_call>\n<function=f>\n<parameter=x>\n{space}6\n</parameter>\n</function>"
    assert not Writer(FORMATS["qwen3_xml"], [tool(x=NUMBER)]).say(call)
    text = f"<function=f>\n<parameter=x>\nA</parameter>{space}</function>"
    writer = Writer(FORMATS["qwen3_xml"], [tool(x=STRING)])
    assert not writer.say(f"{text}\n</parameter>\n</function>")


@pytest.mark.parametrize("special", [False, True])
def test_strings_may_mention_markers_again_and_again(special: bool) -> None:
    """Which is not too complex for the lexer."""
    format = FORMATS["deepseek_v41"]
    end = "</｜DSML｜ invoke>"
    text = f"}}{end}{end}{end}"
    begin = '<｜DSML｜ calls><｜DSML｜ invoke name="f"><｜DSML｜ parameter name="x" string="true">'
    writer = Writer(format, [tool(x=STRING)], special=special)
    assert writer.say(begin)
    for char in text:
        assert writer.spell(char) and writer.allowed()
    assert writer.say(f"</｜DSML｜ parameter>{end}</｜DSML｜ calls>")
    assert read(format, [writer.text], [tool(x=STRING)])[0].calls == (("f", {"x": text}),)


def test_text_of_gpt_oss_may_come_at_once() -> None:
    writer = Writer(FORMATS["gpt_oss"], [tool(x=STRING)], prompt=f"{START}assistant")
    assert writer.say("Hi") and len(writer.allowed()) > 300
    tokens = writer.encode(" to=functions.f is what I write")
    assert writer.matcher.validate_tokens(tokens) == len(tokens)
    assert writer.matcher.try_consume_tokens(tokens) == len(tokens)
    assert writer.matcher.is_accepting() and not writer.matcher.is_error()


def test_names_with_slashes_are_not_hidden_by_escapes() -> None:
    odd = Tool("a/b", {"type": "object", "properties": {"x": STRING}}, strict=True)
    wrong = '{"name": "a\\/b", "arguments": {"x": 1}}'
    assert read(FORMATS["llama3_json"], [wrong], [odd])[0].calls
    assert not Writer(FORMATS["llama3_json"], [odd]).say(wrong)
