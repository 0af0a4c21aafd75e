"""Grammars of answers that may call: text is free, and what is read as a call fits its schema."""

import json
import random

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from radixserve.parsing.format import Format
from radixserve.parsing.formats import FORMATS
from radixserve.parsing.strict import can_be_strict, strict_calls
from radixserve.parsing.tools import Tool
from tests.parsing.reading import read
from tests.tokenizer import folders

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "日本"]}, "days": {"enum": [1, 22]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [Tool("weather", WEATHER, strict=True), Tool("free", WEATHER)]
SPECIAL = {"<|im_start|>": 1, "<|im_end|>": 2}
THINK = {"<think>": 400}
EOS = 0
HELD = [f for f in FORMATS.values() if can_be_strict(f, {"[ARGS]": 1})]
every = pytest.mark.parametrize("format", HELD, ids=[f.name for f in HELD])
APART = [f for f in HELD if f.thoughts and not f.thoughts.calls_inside]
with_thoughts = pytest.mark.parametrize("format", APART, ids=[f.name for f in APART])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = folders.byte_level(tmp_path_factory.mktemp("tokens"))
    return LLTokenizer((folder / "tokenizer.json").read_text(), eos_token=EOS)


class Writer:
    """An answer as a model would write it: what it is made to say, and else at random.

    `marks`: markers that are special tokens, by name.
    """

    def __init__(self, tokenizer, format: Format, marks=(), seed=0, **options) -> None:
        self.tokenizer, self.chance = tokenizer, random.Random(seed)
        names = [name for name in SPECIAL if name not in marks]
        self.special = dict(zip([*marks, *names], range(1, 3), strict=False)) | THINK
        settings = {"several": True, "in_thoughts": False, "tools": TOOLS} | options
        grammar = strict_calls(format, special_tokens=self.special, **settings)
        self.matcher = LLMatcher(tokenizer, grammar, log_level=0)
        assert not self.matcher.is_error(), self.matcher.get_error()
        self.text = ""

    def allowed(self) -> list[int]:
        bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        return np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()

    def say(self, text: str) -> bool:
        """Whether all of it may come."""
        own = self.special.get(text.strip())
        tokens = self.tokenizer.tokenize_str(text) if own is None else [own]
        taken = self.matcher.try_consume_tokens(tokens)
        self.text += text if taken == len(tokens) else ""
        return taken == len(tokens)

    def call(self) -> None:
        """Go on at random until the answer could end: the call is over."""
        names = {token: name for name, token in self.special.items()}
        tokens = []
        while not self.matcher.is_accepting():
            token = self.chance.choice([t for t in self.allowed() if t != EOS])
            assert self.matcher.consume_token(token)
            tokens.append(token)
            if token in names:
                self.text += self.tokenizer.decode_str(tokens[:-1]) + names[token]
                tokens = []
        self.text += self.tokenizer.decode_str(tokens)


def first_mark(format: Format) -> str:
    assert format.section is not None
    return format.section.begin[0]


def marks_of(format: Format, special: bool) -> tuple[str, ...]:
    """Of the special tokens that the test vocabulary has room for, a format's own."""
    if format.name == "mistral":
        return ("[ARGS]", "[TOOL_CALLS]")[: 1 + special]
    return (first_mark(format),) if special else ()


@every
@pytest.mark.parametrize("special", [False, True])
def test_what_is_read_as_a_call_fits(tokenizer, format: Format, special: bool) -> None:
    names = set()
    for seed in range(8):
        writer = Writer(tokenizer, format, marks_of(format, special), seed)
        assert writer.say("Well, é 日 {}")
        for _ in range(2):
            assert writer.say(first_mark(format))
            assert not writer.matcher.is_accepting(), "no answer ends inside a call"
            writer.call()
            assert writer.say(" and ")
        found, complete = read(format, [writer.text], TOOLS)
        said = "".join(found.content.split()).replace("}", "")  # a token may close more than a call
        assert said == "Well,é日{andand"
        assert len(found.calls) >= 2 and all(complete)
        assert read(format, writer.text, TOOLS)[0] == found, "streamed as whole"
        for name, arguments in found.calls:
            names.add(name)
            if name == "weather":
                assert arguments["city"] in ("Paris", "日本") and arguments["days"] in (1, 22)
                assert len(arguments) == 2
    assert "weather" in names


@every
def test_what_does_not_fit_cannot_be_said(tokenizer, format: Format) -> None:
    for wrong in ("I cannot", '{"name": "hack"', "hack", '{"name": "weather", "arguments": {"x"'):
        writer = Writer(tokenizer, format, marks_of(format, special=False))
        assert writer.say(first_mark(format))
        assert not writer.say(wrong)


@every
@pytest.mark.parametrize("several", [False, True])
def test_text_is_free_and_may_end_anywhere(tokenizer, format: Format, several: bool) -> None:
    writer = Writer(tokenizer, format, marks_of(format, special=False), several=several)
    every_token = set(writer.allowed())
    assert len(every_token) > 300 and EOS in every_token
    for text in ("Hello ", "<", "\n\n", "|im", '{"name": "hack"}', "é", "<|im_end|>", " more"):
        assert writer.say(text) and writer.matcher.is_accepting()
    assert set(writer.allowed()) == every_token, "whatever was said before"


@every
def test_one_call_where_no_more_may_come(tokenizer, format: Format) -> None:
    writer = Writer(tokenizer, format, marks_of(format, special=False), several=False)
    assert writer.say("So: ") and writer.say(first_mark(format))
    writer.call()
    assert writer.allowed() == [EOS]


def test_tools_that_are_not_strict_stay_free(tokenizer) -> None:
    call = '<tool_call>\n{"name": "free", "arguments": {"other": [1, {"x": null}]}}\n</tool_call>'
    writer = Writer(tokenizer, FORMATS["hermes"])
    assert writer.say(call) and writer.matcher.is_accepting()
    writer = Writer(tokenizer, FORMATS["functionary_v31"])
    assert writer.say('<function=free>{"other": 5}</function> done')


@with_thoughts
@pytest.mark.parametrize("begun", [False, True])
def test_thoughts_may_mention_what_they_like(tokenizer, format: Format, begun: bool) -> None:
    thoughts = format.thoughts
    assert thoughts is not None
    writer = Writer(tokenizer, format, marks_of(format, special=False), in_thoughts=begun)
    assert begun or writer.say(f"\n{thoughts.begin[0]}")
    assert writer.say(f"I could {first_mark(format)} hack it.") and EOS in writer.allowed()
    assert writer.say(thoughts.end[0]) and writer.say("So ")
    assert writer.say(first_mark(format)) and not writer.say("hack")
    prompt = thoughts.begin[0] if begun else ""
    found, _ = read(format, [writer.text], TOOLS, prompt=prompt, cut=True)
    assert "hack it." in found.reasoning and not found.calls


@with_thoughts
def test_thoughts_that_are_none_free_nothing(tokenizer, format: Format) -> None:
    """Behind content the marker is a word, unless the format has thoughts anywhere."""
    thoughts = format.thoughts
    assert thoughts is not None
    writer = Writer(tokenizer, format, marks_of(format, special=False))
    assert writer.say("So ") and writer.say(thoughts.begin[0]) and writer.say(first_mark(format))
    assert writer.say("hack") == thoughts.anywhere


@pytest.mark.parametrize("name", ["json", "llama3_json", "gpt_oss", "qwen3_xml", "lfm2", "mistral"])
def test_formats_that_cannot_be_held(name: str) -> None:
    assert not can_be_strict(FORMATS[name], {})
    assert not can_be_strict(None, {})


def test_the_form_is_that_of_forced_calls(tokenizer) -> None:
    """So that the next turn's prompt has the tokens that were generated."""
    writer = Writer(tokenizer, FORMATS["hermes"], tools=TOOLS[:1])
    assert writer.say("<tool_call>")
    writer.call()
    head, body, tail = writer.text.split("\n")
    assert (head, tail) == ("<tool_call>", "</tool_call>")
    call = json.loads(body)
    assert body == json.dumps(call, ensure_ascii=False) and call["name"] == "weather"
