"""Answers that a grammar allows: said word by word, and gone on with at random."""

import functools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from radixserve.parsing.format import Format, NamedCalls, TaggedCalls
from radixserve.parsing.grammars.lark import Lark
from radixserve.parsing.grammars.strict import strict_calls
from radixserve.parsing.harmony import TOKENS
from radixserve.parsing.tools import Tool
from tests.tokenizer import folders

EOS = 0


@functools.cache
def tokenizer_data() -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        path = folders.byte_level(Path(folder)) / "tokenizer.json"
        data: dict[str, Any] = json.loads(path.read_text())
        return data


@functools.cache
def tokenizer_with(marks: tuple[str, ...]) -> tuple[LLTokenizer, dict[str, int]]:
    """One that knows `marks` as special tokens, and the ids of all it knows as such."""
    data = json.loads(json.dumps(tokenizer_data()))
    special = {token["content"]: token["id"] for token in data["added_tokens"]}
    new = max(*data["model"]["vocab"].values(), *special.values()) + 1
    shape = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for mark in marks:
        if mark not in special:
            data["added_tokens"].append(shape | {"id": new, "content": mark, "special": True})
            special[mark] = new
            new += 1
    return LLTokenizer(json.dumps(data), eos_token=EOS), special


def marks_of(format: Format) -> tuple[str, ...]:
    """Special tokens as vocabularies of models that write `format` have them."""
    if format.harmony:
        return TOKENS
    if format.name.startswith("deepseek_v") and isinstance(format.calls, TaggedCalls):
        return ("｜DSML｜",)
    if format.name == "kimi_k3":
        return ("<|open|>", "<|close|>", "<|sep|>")
    calls, section = format.calls, format.section
    marks = [*section.begin, *section.end] if section else []
    if isinstance(calls, NamedCalls) and calls.each:
        marks += [*calls.each.begin, *calls.each.end, *calls.name_end, calls.after]
    if isinstance(calls, TaggedCalls):
        marks += [calls.key_open, calls.key_end, calls.key_tag_end, calls.value_end]
    if format.name == "mistral":
        marks += ["[ARGS]", "[CALL_ID]"]
    if format.name == "gemma4":
        marks += ['<|"|>', "<|channel>", "<channel|>"]
    return tuple(m for m in marks if m.strip() and len(m) > 4 and m[0] in "<[" and m[-1] in ">]")


class Writer:
    """An answer as a model would write it: what it is made to say, and else at random."""

    def __init__(
        self,
        format: Format,
        tools: Sequence[Tool],
        *,
        special: bool = True,
        seed: int = 0,
        several: bool = True,
        prompt: str = "",
    ) -> None:
        """`special`: whether the vocabulary has the format's markers as tokens."""
        self.section_end = (format.section.end or ("",))[0] if format.section else ""
        self.chance = random.Random(seed)
        self.tokenizer, self.special = tokenizer_with(marks_of(format) if special else ())
        self.grammar = strict_calls(
            format, tools, several=several, special_tokens=self.special, prompt=prompt
        )
        self.matcher = LLMatcher(self.tokenizer, self.grammar, log_level=0)
        assert not self.matcher.is_error(), self.matcher.get_error()
        self.tokens: list[int] = []

    @property
    def text(self) -> str:
        return self.text_of(self.tokens)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Special tokens as the text that parsers get."""
        names = {token: name for name, token in self.special.items()}
        text, run = "", list[int]()
        for token in tokens:
            if token in names:
                text += self.tokenizer.decode_str(run) + names[token]
                run = []
            else:
                run.append(token)
        return text + self.tokenizer.decode_str(run)

    def allowed(self) -> list[int]:
        bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        return np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()

    def encode(self, text: str) -> list[int]:
        tokens = []
        for piece in Lark(self.special).pieces(text):
            own = self.special.get(piece)
            tokens += self.tokenizer.tokenize_str(piece) if own is None else [own]
        return tokens

    def said(self, text: str) -> str:
        """What of it may not come: "" if all may. All before that has come then."""
        tokens = self.encode(text)
        taken = self.matcher.try_consume_tokens(tokens)
        self.tokens += tokens[:taken]
        return self.text_of(tokens[taken:])

    def spell(self, text: str) -> bool:
        """Whether all of it may come in letters, though some of it may be a special token."""
        tokens = [token for char in text for token in self.tokenizer.tokenize_str(char)]
        self.tokens += tokens
        return bool(self.matcher.try_consume_tokens(tokens) == len(tokens))

    def say(self, text: str) -> bool:
        """Whether all of it may come."""
        return not self.said(text)

    def go_on(self, most: int = 2000) -> None:
        """At random until the answer could end: a call that was begun is over."""
        ends = self.encode(self.section_end)
        for _ in range(most):
            if self.matcher.is_accepting():
                return
            if ends and self.matcher.validate_tokens(ends) == len(ends):
                self.say(self.section_end)  # else it would go on with call after call
                continue
            token = self.chance.choice([t for t in self.allowed() if t != EOS])
            assert self.matcher.consume_token(token)
            self.tokens.append(token)
        raise AssertionError(f"{most} tokens, and the call is not over: {self.text[-300:]}")
