"""Words as banned tokens."""

from pathlib import Path

import pytest

from radixserve.tokenizer.bans import banned_ids
from radixserve.tokenizer.invalid import InvalidRequest
from radixserve.tokenizer.vocabulary import Vocabulary
from tests.tokenizer import folders


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> list[Vocabulary]:
    folder = tmp_path_factory.mktemp("bans")
    return [
        Vocabulary(folders.byte_level(folder / "bytes")),
        Vocabulary(folders.sentencepiece(folder / "pieces")),
    ]


def test_both_spellings_of_a_word_are_banned_or_the_word_is_refused(
    vocabularies: list[Vocabulary],
) -> None:
    """Over the whole vocabulary: what is taken cannot be spelled without a banned token."""
    for vocabulary in vocabularies:
        taken = 0
        for token in range(360):
            word = vocabulary.token_bytes(token).decode(errors="replace")
            if not word.strip():
                continue
            try:
                banned = set(banned_ids([word], vocabulary))
            except InvalidRequest as refusal:
                assert refusal.code == "unsupported_parameter"
                continue
            taken += 1
            for text in (word.lstrip(), f" {word.lstrip()}"):
                assert banned & set(vocabulary.encode(text, add_special_tokens=False))
            assert all(vocabulary.token_bytes(i).strip() in word.encode() for i in banned)
        assert taken > 20


@pytest.mark.parametrize(
    "words", [[""], [" "], ["a", ""], ["radix tree"], ["a", "日本 語"], ["x" * 10**7]]
)
def test_what_cannot_be_banned_is_refused(vocabularies: list[Vocabulary], words: list[str]) -> None:
    for vocabulary in vocabularies:
        with pytest.raises(InvalidRequest) as refusal:
            banned_ids(words, vocabulary)
        assert refusal.value.param == "bad_words"


def test_no_words_ban_nothing(vocabularies: list[Vocabulary]) -> None:
    assert banned_ids([], vocabularies[0]) == []


def test_a_special_token_can_be_banned(tmp_path: Path) -> None:
    vocabulary = Vocabulary(folders.byte_level(tmp_path))
    assert banned_ids(["<|im_start|>"], vocabulary) == [folders.IM_START]
