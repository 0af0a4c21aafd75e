"""Tokens to text, one token at a time, without ever breaking a character.

Bytes are held until their UTF-8 character is whole; only what can never become a character is
replaced by U+FFFD. So the pieces joined are the text of all the tokens, however they were cut.
"""

import codecs
from collections.abc import Collection, Iterable

from radixserve.tokenizer.vocabulary import Vocabulary

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class TextDecoder:
    """The text of one answer."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        starts_text: bool,
        skip_special: bool = True,
        shown: Collection[int] = (),
    ) -> None:
        """`starts_text`: a chat answer, which stands alone, not the continuation of a prompt.

        It matters for sentencepiece vocabularies: they write a space before the first word of a
        text, which is not part of it; in a continuation the same space is.
        `skip_special`: special tokens have no text, but for those in `shown`; else they have their
        spelling.
        """
        self._vocabulary = vocabulary
        self._hidden = vocabulary.special_ids.difference(shown) if skip_special else frozenset()
        self._utf8 = _new_utf8_decoder(errors="replace")
        self._strip = starts_text and vocabulary.strips_leading_space

    def push(self, token: int) -> str:
        """The characters that `token` completes; often none or several."""
        if token in self._hidden:
            return ""
        special = token in self._vocabulary.special_ids
        data = self._vocabulary.token_bytes(token)
        if self._strip and data and not special:
            data = data.removeprefix(b" ")
            self._strip = False
        return self._utf8.decode(data)

    def flush(self) -> str:
        """What is left at the end: "" or U+FFFD for a character that never became whole."""
        return self._utf8.decode(b"", final=True)


def decode_text(tokens: Iterable[int], vocabulary: Vocabulary) -> str:
    """The text that all of `tokens` stand for, special ones spelled out."""
    decoder = TextDecoder(vocabulary, starts_text=True, skip_special=False)
    return "".join(map(decoder.push, tokens)) + decoder.flush()
