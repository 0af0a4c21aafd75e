"""Where remembered answers stand in a prompt's text, so that their own tokens can stand there."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from radixserve.api.history.keys import digest, digests, message_keys, next_key
from radixserve.api.history.store import Said, Splice, Turn, TurnStore
from radixserve.messages import unpack
from radixserve.parsing.calls import Call
from radixserve.parsing.events import CallArguments, CallBegin, Content, Reasoning
from radixserve.parsing.format import Format
from radixserve.parsing.parser import Parser
from radixserve.parsing.tools import Tool
from radixserve.tokenizer.decode import decode_text
from radixserve.tokenizer.invalid import InvalidRequest
from radixserve.tokenizer.vocabulary import Vocabulary

MARK = "\ue000radixserve-next\ue000"  # private-use characters: in no real conversation
END_LENGTH = 256  # characters; longer than any mark a format looks for
MARKED = ("role", "name", "tool_call_id")  # of a message, what stays where its text is MARK

Messages = Sequence[Mapping[str, Any]]


class Rendering(Struct, frozen=True):
    """One request's way from messages to text and back.

    `write` renders the prompt; `peek` any messages, without what makes them a prompt. `format` is
    how an answer to `tools` is written. `goes_on`: the answer goes on from the last message.
    """

    write: Callable[[Messages], str]
    peek: Callable[[Messages], str]
    format: Format | None = None
    tools: Sequence[Tool] = ()
    goes_on: bool = False

    def read(self, text: str, prompt: str) -> Said:
        """What the text says as an answer to a prompt that ends so."""
        if self.format is None:
            return Said(text)
        parser = Parser(self.format, self.tools, prompt=prompt)
        content, reasoning, calls = "", "", list[list[str]]()
        for event in [*parser.feed(text), *parser.finish()]:
            match event:
                case Content(piece):
                    content += piece
                case Reasoning(piece):
                    reasoning += piece
                case CallBegin(_, name):
                    calls.append([name, ""])
                case CallArguments(index, piece):
                    calls[index][1] += piece
        return Said(content, reasoning, tuple(Call(*call) for call in calls))


class Place(Struct, frozen=True):
    """Where the answer to a prompt is remembered. `key`: of the conversation it answers."""

    key: bytes
    start: int
    digest: bytes
    before: Splice | None

    def turn(self, said: Said, answer: bytes) -> Turn:
        key = next_key(self.key, said.message())
        return Turn(key, said, answer, self.start, self.digest, self.before)


class Draft(Struct, frozen=True):
    """A prompt before it is encoded."""

    text: str
    splices: Sequence[Splice] = ()
    place: Place | None = None

    def parts(self, stop: int | None = None) -> list[str | list[int]]:
        """Text to encode and tokens, in turn; of the text only what stands before `stop`."""
        parts: list[str | list[int]] = []
        at = 0
        for splice in self.splices:
            parts += [self.text[at : splice.turn.start], unpack(splice.turn.answer)]
            at = splice.end
        return [*parts, self.text[at:stop]]


class Splicer:
    """Knows what was answered so far, and what ends an answer in a prompt."""

    def __init__(self, store: TurnStore, vocabulary: Vocabulary, ends: Sequence[str]) -> None:
        """`ends`: what a template may print behind an assistant's message."""
        self.store = store
        self._vocabulary = vocabulary
        self._ends = tuple(ends)

    def draft(self, first: bytes, messages: Messages, rendering: Rendering) -> Draft:
        """The prompt of `messages`, which their client wrote in its own way. `first`: `first_key`.

        Raises what rendering raises.
        """
        keys = message_keys(first, messages)
        turns = self._known(messages, keys)
        whole = [restored(m, turns[i].said) if i in turns else m for i, m in enumerate(messages)]
        if rendering.goes_on:  # from there, whatever its client cut
            whole[-1] = {**whole[-1], "content": messages[-1]["content"]}
        try:
            text = rendering.write(whole)
        except InvalidRequest:  # templates may refuse what their client left out
            turns, text = {}, rendering.write(messages)
        splices = self._splices(text, turns, whole, rendering)
        place = Place(keys[-1], len(text), digest(text), splices[-1] if splices else None)
        return Draft(text, splices, place)

    def _known(self, messages: Messages, keys: Sequence[bytes]) -> dict[int, Turn]:
        """By the index of their messages. Reasoning that came along must be that of the turn."""
        said = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        found = self.store.find([keys[i] for i in said])
        return {
            i: turn
            for i in said
            if (turn := found.get(keys[i])) and _same_thoughts(messages[i], turn.said)
        }

    def _splices(
        self, text: str, turns: Mapping[int, Turn], messages: Messages, rendering: Rendering
    ) -> list[Splice]:
        """Up to the last turn whose prompt this text goes on from; all are known from there."""
        found = digests(text, {turn.start for turn in turns.values()})
        for i in sorted(turns, reverse=True):
            turn = turns[i]
            if found[turn.start] != turn.digest:
                continue
            end = self._end_as_it_is(text, turn)
            if end is None:
                end = self._end_as_written(text, turn, messages[: i + 2], i, rendering)
            return chain(turn.before if end is None else Splice(turn, end))
        return []

    def _end_as_it_is(self, text: str, turn: Turn) -> int | None:
        body = decode_text(unpack(turn.answer), self._vocabulary)
        end = turn.start + len(body)
        whole = text.startswith(body, turn.start) and text.startswith(self._ends, end)
        return end if whole else None

    def _end_as_written(
        self, text: str, turn: Turn, messages: Messages, index: int, rendering: Rendering
    ) -> int | None:
        """The template prints the answer in its own way: it has to mean the same, all of it.

        So do the answer's own tokens: their client may have heard less (a call that a limit cut, a
        special token without text), or more (the token that ended it).
        `messages`: up to the one behind the answer, which stands at `index`.
        """
        limit = len(text)
        for behind in messages[index + 1 :]:
            marked = {key: behind[key] for key in MARKED if key in behind} | {"content": MARK}
            try:
                limit = common_length(text, rendering.peek([*messages[: index + 1], marked]))
            except InvalidRequest:
                return None  # no template can be asked for everything
        end = max((text.rfind(mark, turn.start, limit) for mark in self._ends), default=-1)
        if end < 0:
            return None
        printed, body = text[turn.start : end], decode_text(unpack(turn.answer), self._vocabulary)
        if any(name in printed and name not in body for name in _ids(messages[index])):
            return None  # results name their calls by these
        prompt = text[max(turn.start - END_LENGTH, 0) : turn.start]
        readings = (rendering.read(each, prompt) for each in (printed, body))
        return end if all(said.same(turn.said) for said in readings) else None


def chain(splice: Splice | None) -> list[Splice]:
    """It and all before it, in order."""
    splices = []
    while splice is not None:
        splices.append(splice)
        splice = splice.turn.before
    return splices[::-1]


def restored(message: Mapping[str, Any], said: Said) -> dict[str, Any]:
    """The message with what was said, where its client cut it."""
    whole = {**message, "content": said.content}
    return whole | {"reasoning_content": said.reasoning} if said.reasoning else whole


def _ids(message: Mapping[str, Any]) -> list[str]:
    """Of its calls, as its client has them."""
    return [str(call["id"]) for call in message.get("tool_calls") or () if call.get("id")]


def _same_thoughts(message: Mapping[str, Any], said: Said) -> bool:
    given = (message.get("reasoning_content") or "").strip()
    return not given or given == said.reasoning.strip()


def common_length(one: str, other: str) -> int:
    """Of the longest common beginning. Bisection: slices compare at the speed of memory."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
