"""What a chat template does with a conversation, found by rendering small ones.

Templates are programs; reading their source tells little. What a probe cannot be rendered for is
taken as not done.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from radixserve.tokenizer.invalid import InvalidRequest
from radixserve.tokenizer.templates import ChatTemplate
from radixserve.tokenizer.vocabulary import Vocabulary

Messages = Sequence[Mapping[str, Any]]

ASKED, SAID, NEXT = "probe-asked", "probe-said", "probe-next"
THOUGHT, RULE = "probe-thought", "probe-rule"
TOOLS = ("probe_zeta", "probe_alpha")  # not in the order of the alphabet
OTHER_DAY = datetime(2001, 2, 3)


class Traits(Struct, frozen=True):
    """Of one model's template.

    `turn_end`: the special token behind an assistant's message, "" if there is none. `prints_*`:
    tools that are offered, a system's message. `moves`: a prompt is not how the
    next turn's prompt begins. `drops_reasoning`: of earlier turns, even if it is sent.
    """

    turn_end: str = ""
    prints_tools: bool = False
    prints_system: bool = False
    prints_date: bool = False
    sorts_tools: bool = False
    moves: bool = False
    drops_reasoning: bool = False

    def notes(self) -> list[str]:
        """What keeps prompts from sharing a prefix, or surprises, a sentence each."""
        said = {
            "prints_date": "prints the date: it stays that of this start",
            "sorts_tools": "sorts tools by name: one more tool may change the prompt at its start",
            "moves": "prints a turn in another way once the next one comes",
            "drops_reasoning": "leaves out the reasoning of earlier turns",
        }
        return [text for name, text in said.items() if getattr(self, name)]


def traits_of(template: ChatTemplate, vocabulary: Vocabulary) -> Traits:
    user, answer = _message("user", ASKED), _message("assistant", SAID)
    thoughtful = {**answer, "reasoning_content": THOUGHT}
    after = _message("user", NEXT)
    tools = [_tool(name) for name in TOOLS]

    def text(*messages: Mapping[str, Any], offered: bool = False) -> str:
        return _rendered(template, messages, tools if offered else None)

    shown = text(user, offered=True)
    places = [shown.find(name) for name in TOOLS]
    turns = text(user, answer, after)
    other_day = ChatTemplate(template.source, vocabulary, now=OTHER_DAY)
    return Traits(
        turn_end=_first_mark(turns.partition(SAID)[2].partition(NEXT)[0], vocabulary),
        prints_tools=min(places) >= 0,
        prints_system=RULE in text(_message("system", RULE), user),
        prints_date=_rendered(other_day, [user], None) != text(user),
        sorts_tools=min(places) >= 0 and places[0] > places[1],
        moves=any(
            not text(user, answer, after, offered=offered).startswith(text(user, offered=offered))
            for offered in (False, True)
        ),
        drops_reasoning=bool(turns) and THOUGHT not in text(user, thoughtful, after),
    )


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}}
    function = {"name": name, "description": "probe", "parameters": parameters}
    return {"type": "function", "function": function}


def _rendered(
    template: ChatTemplate, messages: Messages, tools: Sequence[Mapping[str, Any]] | None
) -> str:
    try:
        return template.render(messages, tools=tools, add_generation_prompt=True)
    except InvalidRequest:
        return ""


def _first_mark(text: str, vocabulary: Vocabulary) -> str:
    """The special token that comes first in the text."""
    found: Collection[str] = [mark for mark in vocabulary.special_tokens if mark in text]
    return min(found, key=text.index, default="")
