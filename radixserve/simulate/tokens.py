"""Recorded requests as token ids, without a vocabulary.

Text is cut into words and signs much as byte-pair encoders do before they merge; equal pieces get
equal ids. An id of a block trace becomes a run of tokens that no other id has.
"""

import re
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from radixserve.messages import INT32_BYTES, Namespace, pack
from radixserve.simulate.workloads import Blocks, Recorded, Text

WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+|\s+")
LAST_ID = 2**31 - 1  # tokens that one request alone has count down from here, all others up from 0


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it is sent, and the answer that it gets. Tokens as bytes of int32."""

    name: str
    prompt: bytes
    output: bytes  # at least one token
    namespace: Namespace

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt) // INT32_BYTES

    @property
    def output_tokens(self) -> int:
        return len(self.output) // INT32_BYTES

    @property
    def kept(self) -> bytes:
        """All tokens whose K/V exist in the end: the answer's last one is never computed."""
        return self.prompt + self.output[:-INT32_BYTES]


class Encoder:
    """Makes calls of recorded requests: always the same for the same requests in the same order.

    `outputs`: answers are the recorded ones, or as long as those if only lengths are known, and one
    token where nothing is known. Else all are one token. `samples`: a request for n answers is n
    calls; else one.
    """

    def __init__(self, *, outputs: bool = True, samples: bool = False) -> None:
        self.outputs = outputs
        self.samples = samples
        self._words: dict[Hashable, int] = {}
        self._texts: dict[str, bytes] = {}

    def stream(self, requests: Iterable[Recorded]) -> Iterator[Call]:
        for request in requests:
            yield from self.calls(request)

    def calls(self, request: Recorded) -> list[Call]:
        """What is sent for one recorded request."""
        count = request.n if self.samples else 1
        return [self.call(request, sample) for sample in range(count)]

    def call(self, request: Recorded, sample: int = 0) -> Call:
        name = f"{request.id}.{sample}"
        if isinstance(request, Text):
            return Call(name, self._prompt(request), self._answer(request, sample), Namespace())
        assert isinstance(request, Blocks), "a recorded request is text or blocks"
        tokens = _unrolled(request)
        cut = request.length * INT32_BYTES
        output = tokens[cut:] if self.outputs else _own(request.id)
        tenant, salt = request.namespace
        return Call(name, tokens[:cut], output, Namespace(tenant=tenant, salt=str(salt or "")))

    def _prompt(self, request: Text) -> bytes:
        """Text as it is; a chat as role, text, end of each message, then the answer's role."""
        pieces: list[bytes] = []
        for role, text in request.parts:
            if text is None:
                words = _own(request.after[0]) * request.max_out
            else:
                words = self._encoded(text)
            pieces += [words] if role == "" else [self._sign(role), words, self._sign("end")]
        if not request.plain:
            pieces.append(self._sign("assistant"))
        return b"".join(pieces)

    def _answer(self, request: Text, sample: int) -> bytes:
        if not self.outputs or not request.outputs:
            return _own(request.id)
        words = self._encoded(request.outputs[sample % len(request.outputs)])
        if not request.plain:
            words += self._sign("end")
        return words or _own(request.id)

    def _encoded(self, text: str) -> bytes:
        encoded = self._texts.get(text)
        if encoded is None:
            encoded = self._texts[text] = pack(map(self._id, WORD.findall(text)))
        return encoded

    def _sign(self, name: str) -> bytes:
        """A token that no text has."""
        return pack((self._id((name,)),))

    def _id(self, word: Hashable) -> int:
        return self._words.setdefault(word, len(self._words))


def _own(number: int) -> bytes:
    """A token that only the request of this number has."""
    return pack((LAST_ID - number,))


def _unrolled(request: Blocks) -> bytes:
    """Prompt and answer: a run of equal tokens for each block id, then the request's own."""
    tokens = np.full(request.length + request.max_out, LAST_ID - request.id, dtype=np.int32)
    runs = np.array(request.runs, dtype=np.int32).reshape(-1, 2)
    first, count = runs[:, 0], runs[:, 1]
    before = np.cumsum(count) - count
    ids = np.repeat(first - before, count) + np.arange(count.sum(), dtype=np.int32)
    tokens[: request.covered] = np.repeat(ids, request.block)[: request.covered]
    return tokens.tobytes()
