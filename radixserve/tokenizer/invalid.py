"""The error for what a client sent and may correct; the HTTP surfaces answer it with 400."""


class InvalidRequest(ValueError):
    """`message` is a sentence for the client, `param` the field at fault, `code` a short name."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


def shown(value: object, most: int = 50) -> str:
    """A value that a client sent, for a message to it: JSON's name for it, `most` characters."""
    match value:
        case str():
            return value[:most]
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)[:most]
        case list():
            return "array"
        case _:
            return "object"
