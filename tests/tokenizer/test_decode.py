"""Incremental decoding: pieces join to the whole, and no character is broken."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from radixserve.tokenizer.decode import TextDecoder, decode_text
from radixserve.tokenizer.vocabulary import Vocabulary
from tests.tokenizer import folders


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.byte_level(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> Vocabulary:
    return Vocabulary(folder)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def stream(vocabulary: Vocabulary, ids: list[int], starts_text: bool = True) -> list[str]:
    decoder = TextDecoder(vocabulary, starts_text=starts_text)
    return [*(decoder.push(i) for i in ids), decoder.flush()]


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 399), max_size=40))
def test_any_tokens_decode_as_the_library_does(
    ids: list[int], vocabulary: Vocabulary, oracle: Tokenizer
) -> None:
    assert "".join(stream(vocabulary, ids)) == oracle.decode(ids, skip_special_tokens=True)


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 399), max_size=40))
def test_spelled_specials_are_the_librarys_too(
    ids: list[int], vocabulary: Vocabulary, oracle: Tokenizer
) -> None:
    assert decode_text(ids, vocabulary) == oracle.decode(ids, skip_special_tokens=False)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=30))
def test_text_survives_without_replacement(text: str, vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode(text)
    out = stream(vocabulary, ids)
    if not any(i in vocabulary.special_ids for i in ids):
        assert "".join(out) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in out)


def test_a_character_comes_whole(vocabulary: Vocabulary) -> None:
    ids = [
        next(i for i in range(400) if vocabulary.token_bytes(i) == bytes([b]))
        for b in b"\xf0\x9f\xa6\x8a"
    ]
    assert stream(vocabulary, ids) == ["", "", "", "\U0001f98a", ""]
    assert stream(vocabulary, ids[:2]) == ["", "", "\ufffd"]


def test_sentencepiece_text_and_continuation(tmp_path: Path) -> None:
    vocabulary = Vocabulary(folders.sentencepiece(tmp_path))
    ids = vocabulary.encode("radix tree \U0001f98a 日", add_special_tokens=False)
    assert "".join(stream(vocabulary, ids)) == "radix tree \U0001f98a 日"
    assert "".join(stream(vocabulary, ids, starts_text=False)) == " radix tree \U0001f98a 日"
