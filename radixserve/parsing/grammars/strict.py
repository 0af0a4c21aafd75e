"""A grammar for answers that may call strict tools: text is free, calls must fit their schemas.

What begins calls in the model's format is looked for in the text; behind it come calls as
`calls.py` writes them, and free text again. Reasoning is free, whatever markers it mentions.
"""

from collections.abc import Mapping, Sequence

from radixserve.parsing.format import Format
from radixserve.parsing.grammars.calls import CallRules, call_rules
from radixserve.parsing.grammars.harmony import harmony_calls
from radixserve.parsing.grammars.lark import CHAR, SPACE, Lark, no_text
from radixserve.parsing.grammars.schema import ANY_OBJECT
from radixserve.parsing.parser import begins_in_thoughts
from radixserve.parsing.tools import Tool


def strict_calls(
    format: Format,
    tools: Sequence[Tool],
    *,
    several: bool,
    special_tokens: Mapping[str, int],
    prompt: str = "",
) -> str:
    """Answers whose calls are of `tools`, with arguments that fit the schemas of strict ones.

    Other tools' arguments are any object. `format` has calls. `several`: more than one call may
    come. `prompt`: what the answer continues, or its end. Raises Unenforceable.
    """
    held = [t if t.strict else Tool(t.name, ANY_OBJECT) for t in tools]
    lark = Lark(special_tokens)
    if format.harmony:
        return harmony_calls(lark, held, prompt, several=several)
    calls = call_rules(lark, format, held, several=several)
    answer = _Answer(lark, format, calls, several, in_thoughts=begins_in_thoughts(format, prompt))
    begun = bool(format.begun) and prompt.endswith(format.begun)
    return "\n".join([*answer.rules(begun=begun), *calls.rules, *lark.shared])


class _Answer:
    """Writes the rules of all that stands around calls."""

    def __init__(
        self, lark: Lark, format: Format, calls: CallRules, several: bool, *, in_thoughts: bool
    ) -> None:
        self._lark = lark
        self._format = format
        self._calls = calls
        self._several = several
        self._in_thoughts = in_thoughts
        thoughts = format.thoughts
        if thoughts is not None and thoughts.calls_inside:
            thoughts = None  # no more than text to a grammar
        self._thoughts = thoughts
        self._anywhere = thoughts is not None and thoughts.anywhere
        self._marks = [mark for markers in calls.openers.values() for mark in markers]
        if thoughts is not None and thoughts.anywhere:
            self._marks += thoughts.begin
        own = format.thoughts
        words = (*format.silent, *((*own.begin, *own.end) if own else ()))
        begin = thoughts.begin if thoughts is not None and not thoughts.anywhere else ()
        self._tokens = lark.tokens((*self._marks, *begin), words)
        # behind content the marker of thoughts is a word, but first it is not
        late = [word for word in begin if lark.knows(word)]
        self._free = lark.free(self._tokens, " | ".join(map(lark.marker, late)))

    def rules(self, *, begun: bool) -> list[str]:
        """`begun`: the prompt ends with the marker that begins calls."""
        lark, free = self._lark, self._free
        rules = [f"last: {free}TEXT?"]
        for name, markers in self._calls.openers.items():
            rules += self._until(f"to_{name}", markers, free)
        if self._anywhere:
            assert self._thoughts is not None, "there are some"
            rules += self._until("to_thought", self._thoughts.begin, free)
        pieces = self._pieces()
        rules.append(f"piece: {' | '.join((*pieces, *self._called()))}")
        opening = self._body()
        if self._calls.bare:
            rules += self._first()
            opening = self._opening()
        if begun:
            opening = self._begun()
        starts = [opening]
        if self._thoughts is not None:
            ends = self._thoughts.end
            thought_free = lark.free(lark.tokens(ends))
            rules += self._until("thought", ends, thought_free)
            rules.append(f"unfinished: {thought_free}TEXT?")
            if self._in_thoughts:
                starts = [f"thought ({opening})", "unfinished"]
            elif not self._anywhere:
                rules += lark.until("first", self._thoughts.begin, f"/{SPACE}*/")
                starts.append(f"first (thought ({opening}) | unfinished)")
        return [f"start: {' | '.join(starts)}", *rules]

    def _until(self, name: str, markers: Sequence[str], free: str) -> list[str]:
        """Free text up to a marker."""
        first, *more = self._lark.until(f"{name}_mark", markers)
        return [f"{name}: {free}{name}_mark", first, *more]

    def _called(self) -> list[str]:
        return [f"to_{name} {name}" for name in self._calls.openers]

    def _pieces(self) -> list[str]:
        """Pieces of an answer that are no calls, and have others behind them."""
        pieces = ["to_thought thought"] if self._anywhere else []
        for name, word in self._content():
            pieces.append(f"to_{name} {word}")
        return pieces

    def _content(self) -> list[tuple[str, str]]:
        """Markers of content that begin like one of calls: its rule, and what stands behind."""
        return [
            (name, self._lark.marker(word.removeprefix(mark)))
            for name, markers in self._calls.openers.items()
            for mark in markers
            for word in self._format.silent
            if word.startswith(mark) and word != mark
        ]

    def _ends(self) -> list[str]:
        return ["last", "to_thought unfinished"] if self._anywhere else ["last"]

    def _body(self) -> str:
        """The answer, from any place of it where text is free."""
        if self._several:
            return f"piece* ({' | '.join(self._ends())})"
        pieces = self._pieces()
        before = f"({' | '.join(pieces)})* " if pieces else ""
        return f"{before}({' | '.join((*self._called(), *self._ends()))})"

    def _behind_call(self) -> str:
        return f"({self._body()})" if self._several else ""

    def _begun(self) -> str:
        """The answer behind the marker of calls, or of content if more is added to it."""
        ways = [f"{name} {self._behind_call()}" for name in self._calls.openers]
        ways += [f"{word} ({self._body()})" for _, word in self._content()]
        return " | ".join(ways)

    def _first(self) -> list[str]:
        """Rules of a beginning that is not read as calls without markers."""
        unlike = [self._calls.like_bare]
        rules = [f"FIRST: /{CHAR}+/ & {no_text(unlike)}"]
        for name, markers in self._calls.openers.items():
            rules += self._lark.until(f"first_{name}", markers, unlike=unlike)
        return rules

    def _opening(self) -> str:
        """The answer of a format in which calls without markers may begin it."""
        blank = f"({self._tokens})*" if self._tokens else ""
        ways = [f"{self._calls.bare} GAP? {blank}", "FIRST?"]
        if self._tokens:
            ways.append(f"FIRST? ({self._tokens}) ({self._body()})")
        ways += [f"first_{name} {name} {self._behind_call()}" for name in self._calls.openers]
        return " | ".join(ways)
