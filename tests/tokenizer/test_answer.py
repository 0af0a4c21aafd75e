"""One answer from messages: which tokens count, whatever their grouping."""

import pytest

from radixserve.messages import TokenLogprobs, Tokens, pack
from radixserve.tokenizer.answer import AnswerDecoder, Piece
from radixserve.tokenizer.vocabulary import Vocabulary
from tests.tokenizer import folders


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary(folders.byte_level(tmp_path_factory.mktemp("bytes")))


def answer(vocabulary: Vocabulary, text: str, group: int, **options: object) -> list[Piece]:
    """The pieces of an answer of one token per ASCII character, `group` in each message."""
    ids = [vocabulary.encode(char)[0] for char in text] + [folders.IM_END]
    decoder = AnswerDecoder(vocabulary, **options)  # type: ignore[arg-type]
    out: list[Piece] = []
    for start in range(0, len(ids), group):
        part = ids[start : start + group]
        finish = "stop" if part[-1] == folders.IM_END else ""
        logprobs = tuple(TokenLogprobs(-float(i)) for i in range(start, start + len(part)))
        out.append(decoder.push(Tokens("a", pack(part), 3, finish, logprobs)))
        if out[-1].finish:
            break
    return out


@pytest.mark.parametrize("group", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("text", "options", "shown", "count"),
    [
        ("abcdef", {}, "abcdef", 7),
        ("abcdef", {"stops": ["cd"]}, "ab", 4),
        ("abcdef", {"stops": ["x", "fx"]}, "abcdef", 7),
        ("abcabc", {"stops": ["bc"], "min_tokens": 4}, "abca", 6),
        ("abc", {"stops": ["c"]}, "ab", 3),
        ("abcdef", {"stops": ["cd"], "include_stop": True}, "abcd", 4),
        ("abc", {"include_stop": True}, "abc", 4),
        ("abc", {"skip_special": False}, "abc", 4),
        ("abc", {"skip_special": False, "include_stop": True}, "abc<|im_end|>", 4),
        ("abc", {"skip_special": False, "include_stop": True, "stops": ["im"]}, "abc<|im", 4),
    ],
)
def test_text_and_tokens(
    vocabulary: Vocabulary,
    group: int,
    text: str,
    options: dict[str, object],
    shown: str,
    count: int,
) -> None:
    pieces = answer(vocabulary, text, group, **options)
    assert "".join(piece.text for piece in pieces) == shown
    assert sum(len(piece.tokens) for piece in pieces) == count
    values = [value.chosen for piece in pieces for value in piece.logprobs]
    assert values == [-float(i) for i in range(count)]
    assert [piece.finish for piece in pieces] == [""] * (len(pieces) - 1) + ["stop"]
    assert {piece.cached_tokens for piece in pieces} == {3}


def test_an_aborted_answer_ends_with_what_was_held(vocabulary: Vocabulary) -> None:
    decoder = AnswerDecoder(vocabulary, stops=["zz-never"])
    ids = [vocabulary.encode(char)[0] for char in "azz"]
    assert decoder.push(Tokens("a", pack(ids), 3)).text == "a"
    assert decoder.push(Tokens("a", b"", 3, "abort")) == Piece("zz", [], (), 3, "abort")


@pytest.mark.parametrize("group", [1, 2, 100])
def test_the_stop_string_that_ended_it_is_told(vocabulary: Vocabulary, group: int) -> None:
    for stops, stop in ((["x", "de", "cd"], "cd"), (["f"], "f"), (["x"], ""), ([], "")):
        *before, last = answer(vocabulary, "abcdef", group, stops=stops)
        assert (last.stop, last.finish) == (stop, "stop")
        assert not any(piece.stop for piece in before)
