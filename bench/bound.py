"""The most that any prefix cache can hit on the prompts that were really sent.

An infinite cache keeps every prompt whole; a request's hit is its longest prefix among those before
it, less the last token, whose logits are needed. Answers are not counted: a server that keeps them
may go beyond the bound where clients send them back.
"""

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

Prompt = str | list[int] | list[dict[str, str]]


class Prefixes:
    """A trie over everything sent, as one dictionary: exact, no hashes to collide."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, Hashable], int] = {}

    def add(self, tokens: Sequence[Hashable]) -> int:
        """Keeps a prompt; returns how many of its tokens an infinite cache had."""
        node, matched = 0, 0
        for token in tokens:
            child = self._children.get((node, token))
            if child is None:
                child = len(self._children) + 1
                self._children[node, token] = child
            else:
                matched += 1
            node = child
        return min(matched, len(tokens) - 1) if tokens else 0


def words(prompt: Prompt) -> list[Hashable]:
    """Words with roles in place of tokens, where no tokenizer is at hand. Ids stay ids."""
    if isinstance(prompt, str):
        return list(prompt.split())
    return [
        part
        for item in prompt
        for part in (
            [("role", item["role"]), *item["content"].split()] if isinstance(item, dict) else [item]
        )
    ]


def tokenizer(folder: Path) -> Callable[[Prompt], list[Hashable]]:
    """Token ids as the server makes them: tokenizer and chat template of a checkpoint folder."""
    from transformers import AutoTokenizer  # takes seconds, and only this option needs it

    loaded: Any = AutoTokenizer.from_pretrained(folder)

    def encode(prompt: Prompt) -> list[Hashable]:
        if isinstance(prompt, str):
            return list(loaded(prompt)["input_ids"])
        if prompt and isinstance(prompt[0], dict):
            text = loaded.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            return list(loaded(text, add_special_tokens=False)["input_ids"])
        return list(prompt)

    return encode
