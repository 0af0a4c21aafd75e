"""A grammar for answers that may call strict tools: text is free, calls must fit their schemas.

What begins calls in the model's format is looked for in the text; behind it come calls in the form
that `forced.py` writes, and free text again. Reasoning is free, whatever markers it mentions.
Written in llguidance's dialect of Lark, whose lazy lexemes find the first of some markers.
"""

from collections.abc import Collection, Mapping, Sequence

from radixserve.parsing.forced import call_rules, marker, named_rules, quoted
from radixserve.parsing.format import Format, JsonCalls, NamedCalls
from radixserve.parsing.tools import Tool
from radixserve.parsing.values import JSON

_ANY_OBJECT = {"type": "object"}


def can_be_strict(format: Format | None, special_tokens: Mapping[str, int]) -> bool:
    """Whether a marker tells the format's calls from text, and they are JSON (with a name)."""
    if format is None or format.section is None or format.unmarked or format.begun:
        return False
    calls = format.calls
    if isinstance(calls, NamedCalls):
        plain = calls.dialect == JSON and not calls.after and not calls.id_in_name
        return plain and (not calls.or_json or calls.name_end[0] in special_tokens)
    return isinstance(calls, JsonCalls)


def strict_calls(
    format: Format,
    tools: Sequence[Tool],
    *,
    several: bool,
    special_tokens: Mapping[str, int],
    in_thoughts: bool,
) -> str:
    """Answers whose calls are of `tools`, with arguments that fit the schemas of strict ones.

    Other tools' arguments are any object. `format` must be one that can be strict. `several`: more
    than one call may come. `in_thoughts`: the prompt has begun the reasoning.
    """
    held = [t if t.strict else Tool(t.name, _ANY_OBJECT) for t in tools]
    free = _Free(special_tokens)
    thoughts = format.thoughts
    if thoughts is not None and thoughts.calls_inside:
        thoughts = None  # no more than text to a grammar
    found = _openers(format)
    calls = [f"to_{name} {name}" for name in found]
    marks = [mark for markers in found.values() for mark in markers]
    if thoughts is not None and thoughts.anywhere:
        marks += thoughts.begin
    rules = [free.until(f"to_{name}", markers, marks) for name, markers in found.items()]
    rules += [free.rest("last", marks), *_call_rules(format, held, several, special_tokens)]
    pieces, ends, before = calls, ["last"], ""
    if thoughts is not None:
        rules.append(free.until("thought", thoughts.end, thoughts.end))
        rules.append(free.rest("unfinished", thoughts.end))
        if in_thoughts:
            before = "thought "
        if thoughts.anywhere:
            rules.append(free.until("to_thought", thoughts.begin, marks))
            pieces, ends = [*calls, "to_thought thought"], ["last", "to_thought unfinished"]
        elif not in_thoughts:
            rules.append(free.until("first", thoughts.begin, None))
            before = "(first thought)? "
    body = f"piece* ({' | '.join(ends)})"
    if not several:
        free_pieces = "(to_thought thought)* " if len(pieces) > len(calls) else ""
        body = f"{free_pieces}({' | '.join([*calls, *ends])})"
    start = [f"{before}{body}"]
    if before:
        start.append("unfinished" if in_thoughts else "first unfinished")
    return "\n".join(
        [f"start: {' | '.join(start)}", f"piece: {' | '.join(pieces)}", *rules, *free.shared]
    )


def _openers(format: Format) -> dict[str, tuple[str, ...]]:
    """What begins calls, by the rule of what stands behind it."""
    assert format.section is not None, "calls have a marker"
    openers = {"calls": format.section.begin}
    if isinstance(format.calls, NamedCalls) and format.calls.each:
        openers["rest"] = format.calls.each.begin  # models forget the section's own marker
    return openers


def _call_rules(
    format: Format, tools: Sequence[Tool], several: bool, special: Mapping[str, int]
) -> list[str]:
    """The rules of what stands behind the openers."""
    section, calls = format.section, format.calls
    assert section is not None, "calls have a marker"
    last = (section.end or ("",))[0]
    if isinstance(calls, JsonCalls):
        inner = section.begin[0]
        line = marker(inner, {inner: 0}).removeprefix("<[0]>")  # templates print it behind
        return [f"calls: {line} call {marker(last, special)}", *call_rules(tools, calls)]
    assert isinstance(calls, NamedCalls), "other calls cannot be strict"
    end = quoted(last, special) if last else ""
    named = named_rules(tools, quoted(calls.name_end[0], special))
    if calls.each is None:
        return [f"calls: call {end}", *named]
    begin_one, end_one = (quoted(marks[0], special) for marks in (calls.each.begin, calls.each.end))
    one = f"{begin_one} rest"
    return [f"calls: {f'({one})+' if several else one} {end}", f"rest: call {end_one}", *named]


class _Free:
    """Rules of free text. Text of a grammar has no special tokens, so they stand beside it."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self._special = special_tokens
        self._others: dict[str, str] = {}  # ids that are free -> rule

    @property
    def shared(self) -> list[str]:
        """What the other rules stand on."""
        others = [f"{name}: TEXT? <[{ids}]>" for ids, name in self._others.items()]
        return [*others, r"TEXT: /(.|\n)+/", r"SPACE: /\s+/"]

    def until(self, name: str, markers: Sequence[str], marks: Collection[str] | None) -> str:
        """Text up to the first of `markers`, and that; as a special token or in letters.

        None of `marks` stands in the text. None: nothing does, it is whitespace.
        """
        blank = marks is None
        before, char = ("SPACE? ", r"\s") if blank else ("TEXT? ", r"(.|\n)")
        others = "" if marks is None else self._other(marks)
        ids = ",".join(str(self._special[mark]) for mark in markers if mark in self._special)
        token = f" | {before}<[{ids}]>" if ids else ""
        letters = " | ".join(quoted(mark, {}) for mark in markers)
        return f"""{name}: {others}({name}_text{token})
{name}_text[lazy]: /{char}*/ ({letters})"""

    def rest(self, name: str, marks: Collection[str]) -> str:
        """Free text to the end."""
        return f"{name}: {self._other(marks)}TEXT?"

    def _other(self, marks: Collection[str]) -> str:
        """Special tokens but for `marks`, and what text stands before them."""
        ids = ",".join(str(i) for token, i in self._special.items() if token not in marks)
        return f"{self._others.setdefault(ids, f'other_{len(self._others)}')}* " if ids else ""
