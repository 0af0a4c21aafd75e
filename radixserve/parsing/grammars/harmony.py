"""Answers in Harmony (`parsing/harmony.py`), where a message with a recipient is a call."""

import json
from collections.abc import Sequence

from radixserve.parsing.grammars.calls import arguments_schema
from radixserve.parsing.grammars.lark import CHAR, SPACE, Lark, literal, no_text, within
from radixserve.parsing.harmony import (
    CHANNEL,
    CONSTRAIN,
    ENDS,
    MESSAGE,
    START,
    TO_TOOL,
    recipient,
    unfinished_header,
)
from radixserve.parsing.tools import Tool

# Letters that spell the end of a message and the beginning of another are those to a parser.
_FORGED = rf"{CHAR}*<\|(end|call|return)\|>{SPACE}*<\|(start|channel)\|>{CHAR}*"
_LIKE_HEADER = rf"(<\|(start|channel|message|constrain)\|>| to=){CHAR}*"
# No bounds of lengths: with what a text must not be they are too complex for llguidance's lexer.
_TERMINALS = (
    "WORD: /[a-z]+/",
    f"WORDS: /[^<a-z][^<]*/ & {no_text([within([TO_TOOL])])}",
    f"BODY: /{CHAR}+/ & {no_text([_FORGED])}",
    f"PLAIN: /{CHAR}+/ & {no_text((_FORGED, _LIKE_HEADER))}",
)


def harmony_calls(lark: Lark, tools: Sequence[Tool], prompt: str, *, several: bool) -> str:
    """Answers to `prompt` whose messages to tools are calls that fit. Other messages are free.

    `several`: more than one message may be a call.
    """
    start, channel, message, constrain = map(lark.marker, (START, CHANNEL, MESSAGE, CONSTRAIN))
    numbers = range(len(tools))
    rules = [f"to_{i}: {literal(f' {TO_TOOL}{tool.name}')}" for i, tool in enumerate(tools)]
    rules += [
        f"json_{i}: %json {json.dumps(arguments_schema(tool), ensure_ascii=False)}"
        for i, tool in enumerate(tools)
    ]
    typed = f"GAP? ({constrain}? {literal('json')})? {message}"
    early = [f"to_{i} {channel} WORD {typed} json_{i}" for i in numbers]
    late = [f"to_{i} {typed} json_{i}" for i in numbers]
    behind = f"end {start} {literal('assistant')}"
    answers = []
    for first in _first_texts(prompt):
        more = f"({behind} (text | call))*" if several else f"({behind} text)* ({behind} call)?"
        answers.append(f"{first} {more} end?")
    for first in _first_calls(prompt, tools, typed):
        more = f"({behind} (text | call))* " if several else ""
        answers.append(f"{first} {more}end?")
    return "\n".join(
        [
            f"start: {' | '.join(answers)}",
            f"text: WORDS? ({channel} late_text | ({constrain} WORD WORDS?)? {message} BODY?)",
            f"late_text: (WORD WORDS?)? ({constrain} WORD WORDS?)? {message} BODY?",
            f"call: {channel} WORD late_call | {' | '.join(early)}",
            f"late_call: {' | '.join(late)}",
            f"end: {' | '.join(map(lark.marker, ENDS))}",
            *_TERMINALS,
            *rules,
            *lark.shared,
        ]
    )


def _first_texts(prompt: str) -> list[str]:
    """What the answer may begin with, if its first message is none to a tool."""
    header = unfinished_header(prompt)
    if recipient(header):
        return []
    if header.endswith(MESSAGE):
        return ["BODY?"]
    return ["late_text"] if CHANNEL in header else ["PLAIN?", "text"]


def _first_calls(prompt: str, tools: Sequence[Tool], typed: str) -> list[str]:
    """The same for a message to a tool. `typed`: what stands between its name and the arguments."""
    header = unfinished_header(prompt)
    names = [tool.name for tool in tools]
    if name := recipient(header):
        value = f"json_{names.index(name)}" if name in names else "BODY?"
        return [value if header.endswith(MESSAGE) else f"{typed} {value}"]
    if header.endswith(MESSAGE):
        return []
    return ["WORD? late_call"] if CHANNEL in header else ["call"]
