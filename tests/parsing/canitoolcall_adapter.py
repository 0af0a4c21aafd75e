"""Our parser as an engine of the public suite canitoolcall: its fixtures, its checks, our text.

Units are characters, which is finer than any tokenizer cuts. To run the suite's own runner:
`canitoolcall run --engine tests.parsing.canitoolcall_adapter:RadixserveAdapter --env PYTHONPATH=.`
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from canitoolcall.adapters.base import Adapter, ReplayInput, Support, ToolSpec
from canitoolcall.results import ParsedToolCall, ParseResult

from radixserve.parsing.events import CallArguments, CallBegin, CallEnd, Content, Event, Reasoning
from radixserve.parsing.format import Format
from radixserve.parsing.formats import FORMATS
from radixserve.parsing.parser import Parser
from radixserve.parsing.tools import Tool

_BY_MODEL = {  # the beginning of a model's name: its format
    "deepseek-ai/DeepSeek-V3-": "deepseek_v3",
    "deepseek-ai/DeepSeek-V3.1": "deepseek_v31",
    "deepseek-ai/DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai/DeepSeek-V4-": "deepseek_v4",
    "deepseek-ai/DeepSeek-V4.1": "deepseek_v41",
    "google/gemma-4": "gemma4",
    "zai-org/GLM-": "glm4",
    "openai/gpt-oss": "gpt_oss",
    "moonshotai/Kimi-K2": "kimi_k2",
    "moonshotai/Kimi-K3": "kimi_k3",
    "meta-llama/Llama-3": "llama3_json",
    "meta-llama/Llama-4": "llama4_pythonic",
    "mistralai/": "mistral",
    "Qwen/Qwen3-Coder": "qwen3_xml",
    "Qwen/Qwen3.": "qwen3_xml",
    "Qwen/Qwen3-": "hermes",
}


def format_of(model: str) -> Format:
    return FORMATS[next(name for start, name in _BY_MODEL.items() if model.startswith(start))]


def collect(events: Iterable[Event]) -> ParseResult:
    """As a client puts deltas together."""
    content, reasoning = "", ""
    names: list[str] = []
    arguments: list[str] = []
    for event in events:
        match event:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case CallBegin(index, name):
                assert index == len(names)
                names.append(name)
                arguments.append("")
            case CallArguments(index, text):
                arguments[index] += text
            case CallEnd(index, complete):
                assert complete
                json.loads(arguments[index])
    calls = tuple(map(ParsedToolCall, names, arguments))
    return ParseResult(content or None, reasoning or None, calls)


class RadixserveAdapter(Adapter):
    name: ClassVar[str] = "radixserve"
    pinned_version: ClassVar[str] = "0.1.0"
    supports_text_deltas: ClassVar[bool] = True

    def version(self) -> str:
        return self.pinned_version

    def supports(self, family: str, model: str) -> Support:
        return Support(any(model.startswith(start) for start in _BY_MODEL))

    def parser_config(self, raw: ReplayInput) -> dict[str, Any]:
        return {"format": format_of(raw.model).name, "prompt": raw.generation_prompt}

    def units(self, raw: ReplayInput) -> list[int]:
        return [ord(char) for char in raw.text]

    def parse(self, raw: ReplayInput, tools: Sequence[ToolSpec]) -> ParseResult:
        return self.parse_stream_text(raw, [raw.text], tools)

    def parse_stream(
        self, raw: ReplayInput, chunks: Sequence[Sequence[int]], tools: Sequence[ToolSpec]
    ) -> ParseResult:
        return self.parse_stream_text(raw, ["".join(map(chr, chunk)) for chunk in chunks], tools)

    def parse_stream_text(
        self, raw: ReplayInput, deltas: Sequence[str], tools: Sequence[ToolSpec]
    ) -> ParseResult:
        functions = [tool["function"] for tool in tools]
        offered = [Tool(f["name"], f.get("parameters")) for f in functions]
        parser = Parser(format_of(raw.model), offered, prompt=raw.generation_prompt or "")
        events = [event for delta in deltas for event in parser.feed(delta)]
        return collect(events + parser.finish(cut=raw.truncated))
