"""Ids and bytes: the tokenizers library is the judge."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from radixserve.messages import Ready
from radixserve.tokenizer.invalid import InvalidRequest
from radixserve.tokenizer.prompt import check_prompt, encode_prompt
from radixserve.tokenizer.vocabulary import BYTE_OF, Vocabulary
from tests.tokenizer import folders

TEXTS = ["A radix tree", " leading", "kůň 日本語 🎉", "a\n\n  b\t", "<think>x", "a\x00b"]
READY = Ready(64, 64, 400, 16, 100, "f")


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary(folders.byte_level(tmp_path_factory.mktemp("bytes")))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary(folders.sentencepiece(tmp_path_factory.mktemp("pieces")))


def joined(vocabulary: Vocabulary, ids: list[int]) -> str:
    return b"".join(vocabulary.token_bytes(i) for i in ids).decode()


def test_the_byte_alphabet_is_a_bijection() -> None:
    assert sorted(BYTE_OF.values()) == list(range(256))


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_join_to_the_text(text: str, byte_level: Vocabulary) -> None:
    assert joined(byte_level, byte_level.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_sentencepiece_adds_one_space_in_front(text: str, pieces: Vocabulary) -> None:
    assert joined(pieces, pieces.encode(text, add_special_tokens=False)) == " " + text
    assert pieces.strips_leading_space


def test_special_tokens_and_ends(byte_level: Vocabulary) -> None:
    assert byte_level.eos_ids == (folders.IM_END,)
    assert {folders.BOS, folders.IM_START, folders.IM_END} <= byte_level.special_ids
    think = byte_level.encode("<think>")
    assert len(think) == 1 and think[0] not in byte_level.special_ids
    assert byte_level.encode("<|im_end|>") == [folders.IM_END]
    assert byte_level.token_bytes(folders.IM_END) == b"<|im_end|>"


def test_ids_without_a_token_have_no_bytes(byte_level: Vocabulary) -> None:
    assert byte_level.token_bytes(100_000) == b""
    assert byte_level.token_bytes(-1) == b""


def test_token_text_spells_parts_of_characters(byte_level: Vocabulary) -> None:
    part = next(i for i in range(400) if byte_level.token_bytes(i) == b"\xf0")
    assert byte_level.token_text(part) == "bytes:\\xf0"


def test_exactly_one_bos(tmp_path: Path) -> None:
    vocabulary = Vocabulary(folders.byte_level(tmp_path, bos=True))
    assert vocabulary.encode("a")[0] == folders.BOS
    assert vocabulary.encode("<s>a") == vocabulary.encode("a")
    assert vocabulary.encode("a", add_special_tokens=False)[0] != folders.BOS
    assert vocabulary.encode("") == [folders.BOS]


def test_no_bos_where_the_tokenizer_adds_none(byte_level: Vocabulary) -> None:
    assert byte_level.encode("") == []
    assert byte_level.encode("a")[0] != folders.BOS


def test_truncation_settings_of_the_file_are_off(tmp_path: Path) -> None:
    folder = folders.byte_level(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert len(Vocabulary(folder).encode("tokens " * 20)) > 4


def test_eos_ids_of_all_files_count(tmp_path: Path) -> None:
    folder = folders.byte_level(tmp_path)
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert Vocabulary(folder).eos_ids == (folders.IM_END, 7)


def test_odd_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Vocabulary(tmp_path)
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="not supported"):
        Vocabulary(tmp_path)


def test_prompts_outside_the_limits(byte_level: Vocabulary) -> None:
    assert check_prompt([1] * 63, READY, "prompt") == [1] * 63
    with pytest.raises(InvalidRequest, match=r"64 tokens.*has 64 tokens") as caught:
        check_prompt([1] * 64, READY, "prompt")
    assert caught.value.code == "context_length_exceeded"
    for ids, name in (([1, -1], "-1"), ([400], "400"), ([2**70], str(2**70))):
        with pytest.raises(InvalidRequest, match=f"token id {name} "):
            check_prompt(ids, READY, "prompt")
    with pytest.raises(InvalidRequest, match="empty"):
        check_prompt([], READY, "prompt")


def test_hopeless_texts_are_refused_by_their_bytes(byte_level: Vocabulary) -> None:
    text = "x" * (byte_level.longest_token * 65)
    with pytest.raises(InvalidRequest, match="has at least 65 tokens") as caught:
        encode_prompt(text, byte_level, READY, "messages")
    assert caught.value.code == "context_length_exceeded"


def test_no_heavy_imports() -> None:
    script = (
        "import sys, radixserve.tokenizer.answer, radixserve.tokenizer.templates,"
        " radixserve.tokenizer.prompt, radixserve.tokenizer.conversation\n"
        "assert not {'torch', 'transformers', 'fastapi', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
