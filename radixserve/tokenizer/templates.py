"""Chat templates: Jinja programs of a model that turn a conversation into its prompt.

Rendered as transformers' `apply_chat_template` does it (same environment, same globals), in a
sandbox. Takes messages as `conversation.py` leaves them; called in the front's thread pool.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.nodes
import msgspec
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from radixserve.tokenizer.invalid import InvalidRequest
from radixserve.tokenizer.vocabulary import NAMED_TOKENS, Vocabulary

log = logging.getLogger(__name__)

OWN_VARIABLES = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", *NAMED_TOKENS)
)
PREFILL_MARK = "\ue000radixserve-prefill\ue000"  # private-use characters: in no real template


class _Refused(jinja2.TemplateError):
    """A template's own `raise_exception`: its message is meant for the client."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks training targets; for rendering it is only its content."""

    tags = frozenset(("generation",))  # type: ignore[assignment]

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise _Refused(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON in the order in which it was sent; Jinja's own filter sorts keys and escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class ChatTemplate:
    """One compiled template. Thread-safe.

    `strftime_now` is the time of construction: a clock at the start of a prompt would keep any two
    prompts from sharing a prefix.
    """

    def __init__(self, source: str, vocabulary: Vocabulary, *, now: datetime | None = None) -> None:
        """`now`: what it takes for the time. Raises jinja2.TemplateSyntaxError."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = (now or datetime.now()).strftime
        self.source = source
        self._template = environment.from_string(source)
        self._tokens = vocabulary.named_tokens
        self.knows_developer = "developer" in source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation. InvalidRequest if the template refuses it."""
        variables = variables or {}
        if taken := sorted(OWN_VARIABLES & variables.keys()):
            raise InvalidRequest(f"{taken[0]} cannot be set here", "chat_template_kwargs")
        try:
            return self._template.render(
                variables,
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )
        except _Refused as error:
            raise InvalidRequest(f"the chat template says: {error}", "messages") from error
        except RecursionError as error:
            raise InvalidRequest("the messages are nested too deep", "messages") from error
        except Exception as error:  # a template is a program: it may fail in any way
            log.info("the chat template failed: %s: %s", type(error).__name__, error)
            raise InvalidRequest(
                "the model's chat template cannot render these messages", "messages"
            ) from error

    def render_prefill(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The prompt that ends exactly with the content of the last message, which goes on.

        Templates trim and rewrite contents, so a mark stands in for the last one and the text is
        put in its place afterwards. Takes the `tools` and `variables` of `render`.
        """
        *history, last = messages
        marked = [*history, {**last, "content": PREFILL_MARK}]
        text = self.render(marked, add_generation_prompt=False, **options)
        before, mark, _ = text.rpartition(PREFILL_MARK)
        if not mark:
            raise InvalidRequest(
                "the model's chat template does not print the last message",
                "continue_final_message",
            )
        return before + str(last["content"])


def find_template(folder: Path, vocabulary: Vocabulary, override: str) -> ChatTemplate | None:
    """The template of the model in `folder`, or that of the file `override`; None if it has none.

    Looks where transformers puts it: chat_template.jinja, tokenizer_config.json (one text, or a
    list with names, of which "default" counts), chat_template.json.
    """
    if override:
        return ChatTemplate(Path(override).read_text(), vocabulary)
    path = folder / "chat_template.jinja"
    if path.is_file():
        return ChatTemplate(path.read_text(), vocabulary)
    found = vocabulary.settings.get("chat_template")
    path = folder / "chat_template.json"
    if not found and path.is_file():
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any]).get("chat_template")
    if isinstance(found, list):
        named = {entry["name"]: entry["template"] for entry in found}
        found = named.get("default")
    return ChatTemplate(found, vocabulary) if found else None
