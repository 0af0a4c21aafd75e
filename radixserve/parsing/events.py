"""What a parser finds in an answer, in order.

The texts of one kind joined are the whole: `Content` is the message, `Reasoning` the thoughts,
`CallArguments` of one index exactly one JSON object.
"""

from typing import TypeAlias

from msgspec import Struct


class Content(Struct, frozen=True):
    text: str


class Reasoning(Struct, frozen=True):
    text: str


class CallBegin(Struct, frozen=True):
    """`index` counts the calls of an answer from 0."""

    index: int
    name: str


class CallArguments(Struct, frozen=True):
    index: int
    text: str


class CallEnd(Struct, frozen=True):
    """`complete` is False where the answer ended, or stopped making sense, inside the call.

    Its arguments were closed so that they are JSON, but the model never finished them: such a call
    is for showing, not for running. Parsers that hold calls back never send one.
    """

    index: int
    complete: bool = True


Event: TypeAlias = Content | Reasoning | CallBegin | CallArguments | CallEnd
