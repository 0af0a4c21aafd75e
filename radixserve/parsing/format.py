"""What there is to say about how a family of models writes: plain data, no code.

A format has reasoning between markers, sections of tool calls between markers, and one way to write
the calls in a section (`Calls`). The machines that read them are in the files named there.
"""

from typing import TypeAlias

from msgspec import Struct, structs

from radixserve.parsing.values import JSON, Dialect


class Pair(Struct, frozen=True):
    """Markers that begin and end something; several where models use several."""

    begin: tuple[str, ...]
    end: tuple[str, ...] = ()


class Thoughts(Struct, frozen=True):
    """Reasoning stands between `begin` and `end`.

    `trim`: whitespace at its borders is the markers'. `calls_inside`: the model may go over to a
    tool section without ending it. `anywhere`: it may begin behind content too; else such a marker
    is a word of the content. Whether an answer begins inside it is told by its prompt.
    """

    begin: tuple[str, ...]
    end: tuple[str, ...]
    trim: bool = True
    calls_inside: bool = False
    anywhere: bool = False


THINK = Thoughts(("<think>",), ("</think>",))


class JsonCalls(Struct, frozen=True):
    """Objects with the name and the arguments, or arrays of them (`json_calls.py`).

    Models of the format use the first of `names` and of `arguments`. `keyed`: the object's one key
    is the name.
    """

    names: tuple[str, ...] = ("name", "tool_name", "function")
    arguments: tuple[str, ...] = ("arguments", "parameters", "args")
    keyed: bool = False


class NamedCalls(Struct, frozen=True):
    """A name, something that ends it, then one value (`named_calls.py`).

    `each`: markers around each call, where a section has several. The name stands behind `after`
    (if any) and before one of `name_end`, of which "{" belongs to the value already; behind an
    `id_mark` comes something else before it. `pattern`: what of the text there is the name, group
    1. `skip`: code fences and the like around the value. `or_json`: it may be `JsonCalls` instead.
    """

    name_end: tuple[str, ...]
    each: Pair | None = None
    after: str = ""
    id_mark: str = ""
    pattern: str = r"\s*([\w.:/-]+)\s*"
    skip: tuple[str, ...] = ()
    dialect: Dialect = JSON
    or_json: bool = False
    lead: str = ""  # expressions of what models write before the name (and before `after`) and
    tail: str = ""  # behind it


class TaggedCalls(Struct, frozen=True):
    """XML-like: a tag with the name, and tags around each raw argument (`tagged_calls.py`).

    Name and keys stand between the opening and `name_end` or `key_end`; what stands from there to
    `tag_end` are attributes that may tell the value's type. `lines`: a value has lines of its
    own. `value_end` counts only before another argument or the end of the call, since values are
    not escaped. Models leave out the section's first marker, so `open` alone begins calls as well.
    """

    open: str
    name_end: str
    close: str
    key_open: str
    key_end: str
    value_end: str
    tag_end: str = ""
    key_tag_end: str = ""
    lines: bool = False
    entities: bool = False  # names and keys have &amp; and &quot;
    cdata: bool = False  # a value may stand in <![CDATA[...]]>
    numbered: bool = False  # index="1" and so on stands behind a call's name
    typed_by: str = ""  # the attribute of a value that tells its type: `string` ("true", "false")
    # or `type`


class PythonCalls(Struct, frozen=True):
    """A list of Python calls with keywords (`python_calls.py`)."""


Calls: TypeAlias = JsonCalls | NamedCalls | TaggedCalls | PythonCalls


class Format(Struct, frozen=True):
    """One way to write an answer.

    `section`: around the calls; None if no tools are known. `many`: a section goes on until its
    end, and text in it is nothing; else it has one call (or one list) and ends behind it.
    `unmarked`: calls also stand without any marker at the beginning of an answer; they count only
    if they name a tool of the request. `silent`: markers that mean nothing here. `trim`: whitespace
    between content and markers is the markers'. `begun`: a beginning of answers that stands in the
    prompt already. `harmony`: messages with channels instead of all that.
    """

    name: str
    calls: Calls | None = None
    section: Pair | None = None
    thoughts: Thoughts | None = None
    many: bool = False
    unmarked: bool = False
    silent: tuple[str, ...] = ()
    trim: bool = True
    begun: str = ""
    harmony: bool = False


def format_of(format: Format | None, offered: bool) -> Format | None:
    """How answers are read. Where no tools are `offered`, what looks like a call is content."""
    if format is None or offered or format.harmony:
        return format
    if format.thoughts is None:
        return None
    return structs.replace(format, calls=None, section=None, unmarked=False)
