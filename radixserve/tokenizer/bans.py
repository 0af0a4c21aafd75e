"""Words that an answer may not contain, as token ids that are never chosen.

Only words that the tokenizer spells with one token are taken. As everywhere, a model that spells a
word with other tokens than the tokenizer would is not kept from it.
"""

from collections.abc import Sequence

from radixserve.tokenizer.invalid import InvalidRequest
from radixserve.tokenizer.vocabulary import Vocabulary

PARAM = "bad_words"


def banned_ids(words: Sequence[str], vocabulary: Vocabulary) -> list[int]:
    """The tokens that spell one of `words`, with and without a space before it.

    InvalidRequest for a word that is spelled with several tokens: each of those must stay.
    """
    banned: set[int] = set()
    for word in words:
        if not word.strip():
            raise InvalidRequest(f"{PARAM}: a word cannot be empty", PARAM)
        bare = word.lstrip()
        if len(bare.encode()) > vocabulary.longest_token:
            raise _several(word)
        forms = [vocabulary.encode(form, add_special_tokens=False) for form in (bare, f" {bare}")]
        banned |= {form[0] for form in forms if len(form) == 1}
        if not all(banned & set(form) for form in forms):
            raise _several(word)
    return sorted(banned)


def _several(word: str) -> InvalidRequest:
    return InvalidRequest(
        f"{PARAM}: {word[:50]} is more than one token, which is not supported",
        PARAM,
        "unsupported_parameter",
    )
