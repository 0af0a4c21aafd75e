"""What every route of one server needs, made once and passed to each surface's `routes`."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from radixserve.api.body import BodyParser
from radixserve.api.defaults import read_defaults
from radixserve.api.errors import ApiError
from radixserve.api.history.splice import Splicer
from radixserve.api.history.store import TurnStore
from radixserve.api.judge import GrammarJudge
from radixserve.api.metrics import Metrics
from radixserve.config import Config, ServerConfig
from radixserve.messages import Ready
from radixserve.parsing.detect import detect, tokens_as_text
from radixserve.parsing.format import Format
from radixserve.parsing.formats import FORMATS
from radixserve.tokenizer.engine import Engine
from radixserve.tokenizer.templates import ChatTemplate, find_template
from radixserve.tokenizer.told_tools import FORMAT as TOLD
from radixserve.tokenizer.traits import Traits, traits_of
from radixserve.tokenizer.unreadable import UnreadableParts
from radixserve.tokenizer.vocabulary import Vocabulary

T = TypeVar("T")

log = logging.getLogger(__name__)

BACKGROUND_TASKS = 8  # at once
PROMPT_THREADS = 2  # that render and encode prompts beside the event loop


class Front:
    """The parts of the tokenizer process, and its model as clients see it."""

    def __init__(self, config: Config, engine: Engine, metrics: Metrics) -> None:
        """Reads the tokenizer of `config.worker.model_path`, a Hugging Face folder.

        Raises OSError, ValueError or jinja2.TemplateSyntaxError for what cannot be read.
        """
        folder = Path(config.worker.model_path)
        self.config = config.server
        self.settings = _told(config)
        self.engine = engine
        self.metrics = metrics
        self.vocabulary = Vocabulary(folder)
        self.defaults = read_defaults(folder, config.server.sampling_defaults)
        self.template = find_template(folder, self.vocabulary, config.server.chat_template)
        self.special_tokens: dict[str, int] = self.vocabulary.special_tokens
        self.traits = traits_of(self.template, self.vocabulary) if self.template else Traits()
        for note in self.traits.notes():
            log.info("the chat template %s", note)
        self.grammar_tokens: dict[str, int] = self.vocabulary.grammar_tokens
        self.format = answer_format(config.server, self.template, self.special_tokens)
        self.tells_tools = tells_tools(config.server, self.template, self.traits, self.format)
        if self.tells_tools:
            self.format = with_told_calls(self.format)
        self.splicer = self._splicer()
        self.model = config.server.served_model_name or folder.name
        self.created = int(time.time())
        self._tasks: set[asyncio.Task[None]] = set()
        self.parser = BodyParser(config.server.max_body_bytes, strict=config.server.strict_fields)
        self.unreadable = UnreadableParts(replaced=config.server.unreadable_parts == "placeholder")
        self.judge = GrammarJudge()
        self._noted: set[str] = set()
        self._pool = ThreadPoolExecutor(PROMPT_THREADS, thread_name_prefix="prompt")

    def _splicer(self) -> Splicer | None:
        """What remembers answers, if something is to."""
        if not self.config.history_tokens or self.template is None:
            return None
        ends = {self.vocabulary.token_text(token) for token in self.vocabulary.eos_ids}
        ends = {*ends, self.traits.turn_end} - {""}
        return Splicer(TurnStore(self.config.history_tokens), self.vocabulary, sorted(ends))

    @property
    def marker_ids(self) -> frozenset[int]:
        """Special tokens that a chat answer's format reads as text."""
        if self.format is None:
            return frozenset()
        names = tokens_as_text(self.format, self.special_tokens)
        return frozenset(self.special_tokens[name] for name in names) - {*self.vocabulary.eos_ids}

    async def in_thread(self, work: Callable[[], T]) -> T:
        """The result of slow work that must not hold up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def in_background(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs it beside the requests, unless enough of such work runs already."""
        if len(self._tasks) < BACKGROUND_TASKS:
            task = asyncio.get_running_loop().create_task(work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def ready(self) -> Ready:
        """The engine's limits. ApiError 503 if it has not come up or is gone.

        A late heartbeat alone refuses nothing: that is for `/health` to tell.
        """
        engine = self.engine
        if engine.stopped:
            raise ApiError(503, engine.stopped, code="engine_unavailable")
        if engine.ready is None:
            raise ApiError(503, engine.trouble(), code="engine_unavailable", retry_after=1)
        return engine.ready

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404 for another model, 400 where one must be named and is not."""
        if name is None and self.config.strict_fields:
            raise ApiError(400, "model is required", param="model")
        if name is not None and name != self.model:
            raise ApiError(
                404,
                f"the model {name[:200]} does not exist; this server has {self.model}",
                param="model",
                code="model_not_found",
            )

    def note(self, text: str) -> None:
        """Log what the operator should know, once. `text` is none of a client's."""
        if text not in self._noted:
            self._noted.add(text)
            log.info("%s (said once)", text)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.judge.close()


def answer_format(
    config: ServerConfig, template: ChatTemplate | None, special_tokens: Collection[str]
) -> Format | None:
    """How the model writes tool calls and reasoning: as told, or as its template shows."""
    found = detect(template.source, special_tokens) if template else None
    if config.tool_call_parser != "auto":
        thoughts = found.thoughts if found else None
        own = FORMATS.get(config.tool_call_parser, Format("none"))
        found = msgspec.structs.replace(own, thoughts=own.thoughts or thoughts)
    if config.reasoning_parser != "auto":
        own = FORMATS.get(config.reasoning_parser, Format("none"))
        found = msgspec.structs.replace(found or Format("none"), thoughts=own.thoughts)
    if found and found.calls is None and found.thoughts is None and not found.harmony:
        return None
    return found


def tells_tools(
    config: ServerConfig, template: ChatTemplate | None, traits: Traits, format: Format | None
) -> bool:
    """Whether tools have to be told in words: neither template nor tokens know them."""
    if template is None or config.tool_call_parser != "auto" or traits.prints_tools:
        return False
    return format is None or (format.calls is None and not format.harmony)


def with_told_calls(format: Format | None) -> Format:
    """The format with calls as `told_tools` has them."""
    own = FORMATS[TOLD]
    return msgspec.structs.replace(own, thoughts=format.thoughts if format else None)


def _told(config: Config) -> dict[str, Any]:
    """The settings that anyone with the API key may know."""
    told: dict[str, Any] = msgspec.to_builtins(config)
    del told["server"]["api_key"], told["run_dir"], told["launcher"]
    return told


def new_id(prefix: str) -> str:
    """A dash follows a prefix that does not end in `_`."""
    dash = "" if prefix.endswith("_") else "-"
    return f"{prefix}{dash}{secrets.token_hex(12)}"
