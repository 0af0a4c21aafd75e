"""Runs the parser over pieces of an answer and puts its events together, checking their order."""

import itertools
import json
from collections.abc import Iterable, Sequence

from radixserve.parsing.events import CallArguments, CallBegin, Content, Event, Reasoning
from radixserve.parsing.format import Format
from radixserve.parsing.parser import Parser
from radixserve.parsing.tools import Tool
from tests.parsing.writing import Answer


def cut_at(text: str, places: Iterable[int]) -> list[str]:
    borders = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(borders)]


def read(
    format: Format,
    pieces: Iterable[str],
    tools: Sequence[Tool] = (),
    *,
    prompt: str = "",
    hold: bool = True,
    cut: bool = False,
) -> tuple[Answer, list[bool]]:
    """What the parser found, and of each call whether it was complete."""
    parser = Parser(format, tools, prompt=prompt, hold_calls=hold)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return gather([*events, *parser.finish(cut=cut)])


def gather(events: Iterable[Event]) -> tuple[Answer, list[bool]]:
    reasoning, content = "", ""
    names: list[str] = []
    arguments: list[str] = []
    complete: list[bool] = []
    for event in events:
        match event:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case CallBegin(index, name):
                assert index == len(names) == len(complete)
                names.append(name)
                arguments.append("")
            case CallArguments(index, text):
                assert index == len(names) - 1 == len(complete)
                assert text
                arguments[index] += text
            case _:
                assert event.index == len(complete) == len(names) - 1
                complete.append(event.complete)
    assert len(complete) == len(names)
    values = [json.loads(text, parse_constant=_refuse) for text in arguments]
    assert all(isinstance(value, dict) for value in values)
    return Answer(reasoning, content, tuple(zip(names, values, strict=True))), complete


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
