"""Which format a model writes, told by its chat template and special tokens.

A template prints the calls of earlier turns as the model wrote them, so the format's own markers
are in it. What a template leaves to the client the tokenizer's special tokens tell.
"""

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from radixserve.parsing.format import THINK, Format
from radixserve.parsing.formats import FORMATS
from radixserve.parsing.harmony import TOKENS

_SIGNS = (  # in order: the first format of which all signs are there
    ("gpt_oss", ("<|channel|>", "<|message|>", "commentary")),
    ("kimi_k3", ("<|open|>", "<|close|>", "<|sep|>")),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v32", ("｜DSML｜", "function_calls>")),
    ("deepseek_v4", ("｜DSML｜", "tool_calls>")),
    ("deepseek_v41", ("｜DSML｜", " calls>")),
    ("deepseek_v3", ("<｜tool▁sep｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁sep｜>",)),
    ("gemma4", ("<|tool_call>", "<tool_call|>")),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("minimax_m3", ("<mm:think>",)),
    ("seed_oss", ("<seed:tool_call>",)),
    ("hunyuan3", ("<arg_key{}>", ":opensource")),
    ("glm4", ("<tool_call>", "<arg_key>")),
    ("qwen3_xml", ("<tool_call>", "<function=", "<parameter=")),
    ("solar_open", ("<|tool_call:begin|>",)),
    ("minicpm5", ('<function name="', '<param name="')),
    ("functionary_v32", (">>>all",)),
    ("functionary_v32", ("'>>>' + tool_call",)),
    ("functionary_v31", ("<function=", "</function>")),
    ("llama4_pythonic", ("<|python_start|>",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("llama3_json", ("<|start_header_id|>", '"parameters"')),
    ("mistral", ("[TOOL_CALLS]",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("lfm2", ("<|tool_list_start|>",)),
    ("lfm2", ("List of tools: [",)),
    ("nemotron_nano", ("<TOOLCALL>",)),
    ("command_r7b", ("<|START_ACTION|>",)),
    ("command_r_plus", ("Action:", "```json", "tool_name")),
    ("apertus", ("<|tools_prefix|>",)),
    ("gigachat", ("<|function_call|>",)),
    ("gigachat", ("function call", "<|role_sep|>")),
    ("firefunction", ("functools[",)),
    ("tool_calls", ("<tool_calls>", "</tool_calls>")),
    ("granite3", ("<|tool_call|>",)),
    ("hermes", ("<tool_call>",)),
)
_COMPOSED = frozenset(("gpt_oss", "hunyuan3", "kimi_k3"))  # markers that templates put together


def detect(template: str, special_tokens: Collection[str] = ()) -> Format | None:
    """The format, with reasoning only if the model has it; None if it has neither it nor calls."""
    known = "\n".join((template, *special_tokens))
    name = next((name for name, signs in _SIGNS if all(s in known for s in signs)), "")
    if name in _COMPOSED:
        return FORMATS[name]
    own = FORMATS[name].thoughts if name else None
    thoughts = next((t for t in (own, THINK) if t and any(end in known for end in t.end)), None)
    if name:
        return msgspec.structs.replace(FORMATS[name], thoughts=thoughts)
    return Format("reasoning", thoughts=thoughts) if thoughts else None


def tokens_as_text(format: Format, special_tokens: Collection[str]) -> frozenset[str]:
    """The special tokens whose text the parser must get: decoders leave special tokens out."""
    markers = tuple(_strings(msgspec.to_builtins(format)))
    markers += TOKENS if format.harmony else ()
    return frozenset(t for t in special_tokens if t and any(t in marker for marker in markers))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
