"""One answer as it grows: sampled tokens in, text that may be shown out.

Joins incremental decoding and stop strings; the HTTP surfaces use it for streams and for whole
answers alike, so both give the same text.
"""

from collections.abc import Collection, Sequence

from msgspec import Struct

from radixserve.messages import TokenLogprobs, Tokens, unpack
from radixserve.tokenizer.decode import TextDecoder
from radixserve.tokenizer.stops import StopMatcher
from radixserve.tokenizer.vocabulary import Vocabulary


class Piece(Struct, frozen=True):
    """What one `Tokens` message adds to an answer.

    `tokens` and `logprobs` are those sampled, the one that ended the answer included; `text` may
    lag behind them while a character or a possible stop string is incomplete.
    """

    text: str
    tokens: list[int]
    logprobs: tuple[TokenLogprobs, ...]
    cached_tokens: int
    finish: str  # "" while the answer goes on, else "stop", "length" or "abort"
    stop: str = ""  # the stop string that ended the answer, if one did


class AnswerDecoder:
    """State of one answer. `push` each message in order, until a piece has a `finish`."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        stops: Sequence[str] = (),
        min_tokens: int = 0,
        starts_text: bool = True,
        include_stop: bool = False,
        skip_special: bool = True,
        shown: Collection[int] = (),
    ) -> None:
        """`skip_special`, `shown`: see TextDecoder.

        `include_stop`: what ended the answer, a stop id or string, belongs to its text.
        """
        self._text = TextDecoder(
            vocabulary, starts_text=starts_text, skip_special=skip_special, shown=shown
        )
        self._stops = StopMatcher(stops, include=include_stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._count = 0

    def push(self, message: Tokens) -> Piece:
        tokens = unpack(message.tokens)
        text = ""
        for done, token in enumerate(tokens, start=1):
            ended = message.finish == "stop" and done == len(tokens)
            shown = self._include_stop or not ended
            text += self._add(self._text.push(token) if shown else "")
            if self._stops.matched:
                return self._piece(message, tokens[:done], text, "stop")
        if not message.finish:
            return self._piece(message, tokens, text, "")
        text += self._stops.push(self._text.flush())
        if self._stops.matched:
            return self._piece(message, tokens, text, "stop")
        return self._piece(message, tokens, text + self._stops.flush(), message.finish)

    def _add(self, text: str) -> str:
        """One more token's text. Stop strings count only where the answer is long enough."""
        self._count += 1
        return self._stops.push(text) if self._count >= self._min_tokens else text

    def _piece(self, message: Tokens, tokens: list[int], text: str, finish: str) -> Piece:
        logprobs = message.logprobs[: len(tokens)]
        stop = self._stops.matched
        return Piece(text, tokens, logprobs, message.cached_tokens, finish, stop)
