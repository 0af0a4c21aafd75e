"""A prompt in its own answer: its text (`echo`), and what the model thought of its tokens.

For surfaces that show either. Long prompts have many tokens: call it in a thread.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Struct

from radixserve.api.generation import Generation
from radixserve.api.logprobs import Name, characters, completion_logprobs, finite
from radixserve.messages import TokenLogprobs
from radixserve.tokenizer.answer import Piece
from radixserve.tokenizer.decode import decode_text
from radixserve.tokenizer.vocabulary import Vocabulary


class Echo(Struct, frozen=True):
    """A prompt as an answer repeats it; `offsets`: where in `text` each token begins."""

    tokens: Sequence[int]
    text: str
    offsets: list[int]

    def logprobs(
        self, name: Name, found: Sequence[TokenLogprobs | None], best: int
    ) -> dict[str, Any]:
        """The prompt's part of the `logprobs` of a completions choice.

        `name`: how tokens are called. `found`: see `Generation.prompt_logprobs`; of the best tokens
        `best` are shown.
        """
        shown = [one and TokenLogprobs(one.chosen, one.top[:best]) for one in found]
        return completion_logprobs(name, self.tokens, shown, self.offsets)


def make_echo(
    vocabulary: Vocabulary, prompt: str | Sequence[int], tokens: Sequence[int], *, cut: bool
) -> Echo:
    """`tokens` were made of `prompt`, and are its last ones if it was `cut`.

    All is spelled out, special tokens too, but for what the tokenizer itself put before a text.
    """
    text = prompt if isinstance(prompt, str) and not cut else None
    bos = vocabulary.encode("") if isinstance(prompt, str) else []
    spelled = isinstance(prompt, str) and prompt.encode().startswith(_bytes(vocabulary, bos))
    added = len(bos) if bos and not spelled and list(tokens[: len(bos)]) == bos else 0
    offsets, end = [0] * added, 0
    for token in tokens[added:]:
        offsets.append(end)
        end += characters(vocabulary, token, skip_special=False)
        if len(offsets) == added + 1 and vocabulary.strips_leading_space:
            end -= token not in vocabulary.special_ids and _bytes(vocabulary, [token])[:1] == b" "
    return Echo(tokens, text or decode_text(tokens[added:], vocabulary), offsets)


def _bytes(vocabulary: Vocabulary, tokens: Sequence[int]) -> bytes:
    return b"".join(map(vocabulary.token_bytes, tokens))


def prompt_logprobs(
    vocabulary: Vocabulary,
    tokens: Sequence[int],
    found: Sequence[TokenLogprobs | None],
    best: int,
) -> list[dict[str, Any] | None]:
    """vLLM's field of this name: for each token of a prompt what else might have stood there.

    `found`: see `Generation.prompt_logprobs`; of the best tokens `best` are shown.
    """

    def entry(token: int, logprob: float, rank: int) -> dict[str, Any]:
        text = vocabulary.token_text(token)
        return {"logprob": finite(logprob), "rank": rank, "decoded_token": text}

    def others(one: TokenLogprobs) -> dict[str, Any]:
        best_ones = enumerate(one.top[:best], start=1)
        return {str(token): entry(token, logprob, rank) for rank, (token, logprob) in best_ones}

    return [
        None if one is None else {str(token): entry(token, one.chosen, one.rank)} | others(one)
        for token, one in zip(tokens, found, strict=True)
    ]


async def behind_scores(generation: Generation) -> AsyncGenerator[tuple[int, Piece], None]:
    """`generation.pieces`, but no choice's before all is known of its prompt that is wanted."""
    held: dict[int, list[tuple[int, Piece]]] = {}
    async with aclosing(generation.pieces()) as pieces:
        async for index, piece in pieces:
            prompt = generation.prompt_of(index)
            held.setdefault(prompt, []).append((index, piece))
            if generation.is_scored(prompt):
                for item in held.pop(prompt):
                    yield item
    for rest in held.values():  # was aborted
        for item in rest:
            yield item
