"""Pieces of llguidance's dialect of Lark: literals, expressions, and text up to a marker.

Text of a grammar has no special tokens: a marker that is one, or has one in it, is named by the
token's id. But parsers read text, so letters that spell a marker are that marker too.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence

CHAR = r"(.|\n)"
SPACE = r"[\s\x1c-\x1f]"  # what is white space to parsers, that is to Python
NEW_KEY = "[A-Za-z_][A-Za-z0-9_]{0,63}"  # an expression of keys that no schema names
_SHARED = (
    r"TEXT: /(.|\n)+/",
    rf"SAID: /{SPACE}*[^\s\x1c-\x1f](.|\n)*/",
    r"GAP: /\n{1,2}| /",
    r"NEVER: /[^\s\S]/",
)
_SYNTAX = re.compile(r"[\\.+*?()|\[\]{}^$/]")


def literal(text: str) -> str:
    """Exactly these letters."""
    return json.dumps(text, ensure_ascii=False)


def letters(text: str) -> str:
    """A regular expression of exactly these letters."""
    return _SYNTAX.sub(lambda found: "\\" + found.group(), text).replace("\n", r"\n")


def one_of(texts: Collection[str]) -> str:
    """A regular expression of these texts. None: of nothing."""
    return f"({'|'.join(map(letters, texts))})" if texts else r"[^\s\S]"


def within(texts: Collection[str]) -> str:
    """An expression of texts in which one of `texts` stands."""
    return f"{CHAR}*{one_of(texts)}{CHAR}*"


def no_text(patterns: Collection[str]) -> str:
    """Part of a terminal: it is no text of `patterns`.

    One complement for all: several at once can lose texts in llguidance 1.9.
    """
    return f"~/({'|'.join(patterns)})/"


class Lark:
    """Writes rules for a vocabulary with some special tokens."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self._special = special_tokens
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._finder = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._others: dict[str, str] = {}  # what is free -> its rule

    @property
    def shared(self) -> list[str]:
        """What the other rules stand on."""
        return [*(f"{name}: {body}" for body, name in self._others.items()), *_SHARED]

    def knows(self, token: str) -> bool:
        """Whether that is a special token."""
        return token in self._special

    def marker(self, text: str) -> str:
        """Exactly this, with the special tokens that are in it."""
        return " ".join(
            f"<[{self._special[piece]}]>" if piece in self._special else literal(piece)
            for piece in self.pieces(text)
        )

    def until(
        self,
        name: str,
        markers: Sequence[str],
        body: str = "",
        *,
        unlike: Sequence[str] = (),
        empty: bool = True,
    ) -> list[str]:
        """The rules of `name`: text up to the first of `markers`, and that.

        `body`: what a terminal says of the text; "": anything. `unlike`: expressions of texts that
        it must not be. `empty`: there may be none. Where one of these is given, the text spells no
        marker in letters that is written in tokens: llguidance's masks name the tokens where the
        letters are the only way to go on.
        """
        spelled = list(markers)
        text = f"/{CHAR}*/"
        if body or unlike:
            spelled = [marker for marker in markers if not self._has_token(marker)]
            text = " & ".join(filter(None, (text, body, no_text((*unlike, within(markers))))))
        upper = name.upper()
        rules, ways = [], []
        if spelled:
            rules.append(f"{name}_letters[lazy]: ({text}) ({' | '.join(map(literal, spelled))})")
            ways.append(f"{name}_letters")
        for i, marker in enumerate(markers):
            first, *rest = self.pieces(marker)
            if first in self._special:
                ways.append(f"{upper}{'?' if empty else ''} {self.marker(marker)}")
            elif rest:
                rules.append(f"{upper}_{i}: ({text}) {literal(first)}")
                ways.append(f"{upper}_{i} {self.marker(''.join(rest))}")
        if any(self.pieces(marker)[0] in self._special for marker in markers):
            rules.append(f"{upper}: ({text}) & /{CHAR}+/")
        return [f"{name}: {' | '.join(ways)}", *rules]

    def _has_token(self, marker: str) -> bool:
        return any(piece in self._special for piece in self.pieces(marker))

    def tokens(self, marks: Collection[str], words: Collection[str] = ()) -> str:
        """What may stand in free text beside letters; "" if nothing may.

        All special tokens that are none of `marks` and in none of them; and those of `words`,
        markers that mean nothing there, as a whole.
        """
        parts = {piece for mark in (*marks, *words) for piece in self.pieces(mark)}
        ids = ",".join(str(i) for token, i in self._special.items() if token not in parts)
        free = [f"<[{ids}]>"] if ids else []
        for word in words:
            if word not in marks and self.pieces(word)[0] in self._special:
                free.append(self.marker(word))
        return " | ".join(free)

    def free(self, tokens: str, late: str = "") -> str:
        """Any number of `tokens`, each with the text before it, to stand before other text.

        `late`: those that stand only behind some text.
        """
        ways = [f"TEXT? ({tokens})"] if tokens else []
        ways += [f"SAID ({late})"] if late else []
        if not ways:
            return ""
        body = " | ".join(ways)
        return f"{self._others.setdefault(body, f'other_{len(self._others)}')}* "

    def pieces(self, text: str) -> list[str]:
        """`text` cut at its special tokens; these are pieces."""
        pieces, end = [], 0
        for found in self._finder.finditer(text):
            pieces += [text[end : found.start()], found.group()]
            end = found.end()
        return [piece for piece in (*pieces, text[end:]) if piece] or [""]
