"""Grammars of gpt-oss's answers: messages to tools fit, other messages are free."""

import jsonschema
import pytest

from radixserve.parsing.formats import FORMATS
from radixserve.parsing.harmony import START
from tests.parsing.grammars.answers import EOS, Writer
from tests.parsing.grammars.test_strict import MANY, TOOLS, WEATHER
from tests.parsing.reading import read

HARMONY = FORMATS["gpt_oss"]
PROMPT = f"{START}assistant"
SCHEMAS = {"weather": WEATHER, "many": MANY}
THOUGHT = "<|channel|>analysis<|message|>Hm, 日 to=functions.hack?<|end|>"
AGAIN = f"{START}assistant"
HEADERS = [
    "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>",
    "<|channel|>analysis to=functions.weather<|message|>",
    " to=functions.weather<|channel|>commentary json<|message|>",
]
FITS = '{"city": "Paris", "days": 22}'
headers = pytest.mark.parametrize("header", HEADERS)


@headers
@pytest.mark.parametrize("thought", ["", THOUGHT + AGAIN])
def test_a_call_fits(header: str, thought: str) -> None:
    writer = Writer(HARMONY, TOOLS, prompt=PROMPT)
    assert writer.said(f"{thought}{header}{FITS}<|call|>") == "" and writer.matcher.is_accepting()
    found, _ = read(HARMONY, [writer.text], TOOLS, prompt=PROMPT)
    assert found.calls == (("weather", {"city": "Paris", "days": 22}),)
    for wrong in ('{"city": "Rome"', "Paris", '{"city": "Paris"}', "<|call|>"):
        writer = Writer(HARMONY, TOOLS, prompt=PROMPT)
        assert not writer.say(f"{thought}{header}{wrong}")
    writer = Writer(HARMONY, TOOLS, prompt=PROMPT)
    assert not writer.say(f"{thought}{header}".replace("weather", "hack"))


@headers
def test_what_is_read_as_a_call_fits(header: str) -> None:
    header = header.replace("weather", "many")
    for seed in range(12):
        writer = Writer(HARMONY, TOOLS, prompt=PROMPT, seed=seed)
        assert writer.say(header)
        writer.go_on()
        found, complete = read(HARMONY, [writer.text], TOOLS, prompt=PROMPT)
        ((name, arguments),) = found.calls
        assert name == "many" and complete == [True]
        jsonschema.validate(arguments, SCHEMAS[name])


@pytest.mark.parametrize("prompt", ["", PROMPT, f"{PROMPT}<|channel|>final<|message|>"])
def test_other_messages_are_free(prompt: str) -> None:
    writer = Writer(HARMONY, TOOLS, prompt=prompt)
    if not prompt.endswith("<|message|>"):
        assert writer.say(f"{THOUGHT}{AGAIN}<|channel|>final<|message|>")
    assert writer.say("Hello {} é") and EOS in writer.allowed() and len(writer.allowed()) > 300
    assert writer.say("<|end|>") and writer.say(AGAIN)
    assert writer.say(" to=browser.search<|channel|>commentary<|message|>what it likes<|call|>")
    assert not read(HARMONY, [writer.text], TOOLS, prompt=prompt)[0].calls


def test_letters_forge_no_message() -> None:
    """Text that the parser would take for the beginning of a call."""
    forged = f"<|end|>{AGAIN}<|channel|>commentary to=functions.weather<|message|>{{"
    writer = Writer(HARMONY, TOOLS, prompt=PROMPT)
    assert writer.say("<|channel|>final<|message|>Look: ")
    assert not writer.spell(forged)
    writer = Writer(HARMONY, TOOLS, prompt="")
    assert not writer.spell(forged.removeprefix("<|end|>"))


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        (f"{PROMPT}<|channel|>commentary to=functions.weather<|message|>", FITS),
        (
            f"{PROMPT}<|channel|>commentary to=functions.weather",
            f" <|constrain|>json<|message|>{FITS}",
        ),
        (f"{PROMPT}<|channel|>", f"commentary to=functions.weather<|message|>{FITS}"),
        (f"{PROMPT}<|channel|>commentary", f" to=functions.weather<|message|>{FITS}"),
    ],
)
def test_messages_that_the_prompt_begins(prompt: str, answer: str) -> None:
    writer = Writer(HARMONY, TOOLS, prompt=prompt)
    assert writer.said(answer) == "" and writer.matcher.is_accepting()
    found, _ = read(HARMONY, [writer.text], TOOLS, prompt=prompt)
    assert found.calls == (("weather", {"city": "Paris", "days": 22}),)
    assert not Writer(HARMONY, TOOLS, prompt=prompt).say(answer.replace("Paris", "Rome"))


def test_one_call_where_no_more_may_come() -> None:
    call = f"{HEADERS[0]}{FITS}<|end|>"
    writer = Writer(HARMONY, TOOLS, prompt=PROMPT, several=False)
    assert writer.say(THOUGHT + AGAIN + call) and writer.allowed() == [EOS]
    writer = Writer(HARMONY, TOOLS, prompt=PROMPT)
    assert writer.say(call + AGAIN + call)
