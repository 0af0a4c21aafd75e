"""Listens to one answer and remembers it when it has ended."""

from collections.abc import Callable, Sequence

from radixserve.api.history.splice import Place
from radixserve.api.history.store import Said, TurnStore
from radixserve.api.reading import Message
from radixserve.messages import pack
from radixserve.parsing.calls import Call
from radixserve.parsing.events import Event
from radixserve.tokenizer.answer import Piece


class Recorder:
    """Of one choice. `ended` is told what was said, when it is remembered."""

    def __init__(
        self, store: TurnStore, place: Place, ended: Callable[[Said], None] | None = None
    ) -> None:
        self._store = store
        self._place = place
        self._ended = ended
        self._message = Message()
        self._tokens: list[int] = []

    def heard(self, piece: Piece, events: Sequence[Event]) -> None:
        self._message.add(events)
        self._tokens += piece.tokens
        if piece.finish and self._whole(piece):
            said = self._said()
            answer = self._tokens[:-1] if piece.finish == "stop" else self._tokens
            self._store.add(self._place.turn(said, pack(answer)))
            if self._ended:
                self._ended(said)

    def _whole(self, piece: Piece) -> bool:
        """Whether the tokens say what the client heard, no more, and it can say so again.

        An answer that a limit cut may have lost the end of a call, and a stop string has cut its
        own tokens from the text.
        """
        if piece.finish == "length":
            return bool(self._message.content) and not self._message.calls
        return piece.finish == "stop" and not piece.stop

    def _said(self) -> Said:
        message = self._message
        functions = [call["function"] for call in message.calls]
        calls = tuple(Call(function["name"], function["arguments"]) for function in functions)
        return Said(message.content, message.reasoning, calls)
