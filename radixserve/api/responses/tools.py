"""Tools and tool choices of Responses, as chat has them.

Functions in namespaces go by `namespace.name`, and a call says both. Tools that the provider would
run (search, interpreters) are not there to be called: they are left out, and the log says so once.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from radixserve.api.errors import ApiError
from radixserve.api.reading import AUTO, REQUIRED
from radixserve.tokenizer.invalid import shown

log = logging.getLogger(__name__)

MAX_LOGGED_TYPES = 100  # beyond which unknown types are no longer told apart
COPIED = ("description", "parameters")  # what templates print, beside the name


class Tools(Struct, frozen=True):
    """`functions` in chat's form; `names`: of those in namespaces; `shown`: what a response says;
    `strict`: the full names of those that are, which is not for the prompt"""

    functions: list[dict[str, Any]]
    names: dict[str, tuple[str, str]]  # as the model says it -> namespace, name
    shown: list[dict[str, Any]]
    strict: set[str]


class ToolReader:
    """Reads the tools of one server's requests; remembers which types it has logged."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def read(self, tools: Sequence[Mapping[str, Any]]) -> Tools:
        """ApiError 400 for a function that is none."""
        read = Tools([], {}, [], set())
        for i, tool in enumerate(tools):
            kind = tool.get("type")
            if kind == "function":
                _add_function(read, tool, f"tools[{i}]", "")
                read.shown.append(_shown(tool))
            elif kind == "namespace":
                self._add_namespace(read, tool, f"tools[{i}]")
            else:
                self._leave_out(shown(kind))
        return read

    def _add_namespace(self, read: Tools, tool: Mapping[str, Any], where: str) -> None:
        space = _text(tool, "name", where)
        inner = tool.get("tools")
        if not isinstance(inner, list):
            raise ApiError(400, f"{where}.tools must be a list", param=f"{where}.tools")
        listed = []
        for i, function in enumerate(inner):
            at = f"{where}.tools[{i}]"
            if not isinstance(function, dict):
                raise ApiError(400, f"{at} must be an object", param=at)
            if function.get("type") != "function":
                self._leave_out(f"namespace/{shown(function.get('type'))}")
                continue
            _add_function(read, function, at, f"{space}.")
            read.names[f"{space}.{function['name']}"] = space, function["name"]
            listed.append(_shown(function))
        read.shown.append({"description": "", **tool, "tools": listed})

    def _leave_out(self, kind: str) -> None:
        if kind not in self._logged and len(self._logged) < MAX_LOGGED_TYPES:
            self._logged.add(kind)
            log.info("leaving out tools of the type %.100r (said once)", kind)


def chat_choice(
    tools: Tools, choice: str | Mapping[str, Any] | None
) -> tuple[list[dict[str, Any]], str | Mapping[str, Any] | None]:
    """Which functions the answer may call, and the choice among them as chat has it.

    Functions that are not allowed stay in the prompt, so that it begins as before. ApiError 400.
    """
    if not isinstance(choice, Mapping):
        return tools.functions, choice
    kind = choice.get("type")
    if kind == "function":
        return tools.functions, {"function": {"name": _full_name(choice)}}
    allowed, mode = choice.get("tools"), choice.get("mode")
    if kind == "allowed_tools" and isinstance(allowed, list) and mode in (AUTO, REQUIRED):
        names = [_full_name(tool) for tool in allowed if isinstance(tool, dict)]
        return [tool for tool in tools.functions if tool["function"]["name"] in names], mode
    text = f"tool_choice: this form of {shown(kind)} is not supported by this server"
    raise ApiError(400, text, param="tool_choice")


def said_name(space: object, name: str) -> str:
    """The name of a function as the model says it."""
    return f"{space}.{name}" if isinstance(space, str) and space else name


def _full_name(tool: Mapping[str, Any]) -> object:
    name = tool.get("name")
    return said_name(tool.get("namespace"), name) if isinstance(name, str) else None


def _add_function(read: Tools, tool: Mapping[str, Any], where: str, prefix: str) -> None:
    name = prefix + _text(tool, "name", where)
    schema = tool.get("parameters")
    if schema is not None and not isinstance(schema, dict):
        at = f"{where}.parameters"
        raise ApiError(400, f"{at}: a JSON schema is an object", param=at)
    copied = {key: tool[key] for key in COPIED if tool.get(key) is not None}
    read.functions.append({"type": "function", "function": {"name": name, **copied}})
    if tool.get("strict") is True:
        read.strict.add(name)


def _shown(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": None, "parameters": None, "strict": None, **tool}


def _text(tool: Mapping[str, Any], key: str, where: str) -> str:
    value = tool.get(key)
    if not isinstance(value, str) or not value:
        raise ApiError(400, f"{where}.{key} is missing", param=f"{where}.{key}")
    return value
