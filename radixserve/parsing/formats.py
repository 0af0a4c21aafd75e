"""The formats that are known, by name. `detect.py` tells which one a chat template wants.

Sources: the models' chat templates; for DeepSeek V3.2 and later and Kimi K3 their encoders;
openai/harmony for gpt-oss; mistral-common for Mistral; Meta's prompt format pages for Llama.
"""

from radixserve.parsing.format import (
    THINK,
    Format,
    JsonCalls,
    NamedCalls,
    Pair,
    PythonCalls,
    TaggedCalls,
    Thoughts,
)
from radixserve.parsing.values import GEMMA

_TOOL_CALL = Pair(("<tool_call>",), ("</tool_call>",))


def _deepseek(name: str, prefix: str, section: str) -> Format:
    """DSML, the XML of DeepSeek V3.2 and later; its tags differ by a space and a word."""
    mark = "｜DSML｜" + prefix
    return Format(
        name,
        TaggedCalls(
            open=f'<{mark}invoke name="',
            name_end='"',
            tag_end=">",
            close=f"</{mark}invoke>",
            key_open=f'<{mark}parameter name="',
            key_end='"',
            key_tag_end=">",
            value_end=f"</{mark}parameter>",
        ),
        Pair((f"<{mark}{section}>",), (f"</{mark}{section}>",)),
        THINK,
        many=True,
    )


def _xml(name: str, section: Pair, *, lines: bool, thoughts: Thoughts | None) -> Format:
    """`<function=f><parameter=k>`, which several families share."""
    calls = TaggedCalls(
        open="<function=",
        name_end=">",
        close="</function>",
        key_open="<parameter=",
        key_end=">",
        value_end="</parameter>",
        lines=lines,
    )
    return Format(name, calls, section, thoughts)


def _invoke(name: str, section: str, thoughts: Thoughts | None, prefix: str = "") -> Format:
    """`<invoke name="f"><parameter name="k">`, likewise."""
    calls = TaggedCalls(
        open=f'<{prefix}invoke name="',
        name_end='"',
        tag_end=">",
        close=f"</{prefix}invoke>",
        key_open=f'<{prefix}parameter name="',
        key_end='"',
        key_tag_end=">",
        value_end=f"</{prefix}parameter>",
    )
    return Format(name, calls, Pair((f"<{section}>",), (f"</{section}>",)), thoughts, many=True)


_DEEPSEEK_SECTION = Pair(("<｜tool▁calls▁begin｜>",), ("<｜tool▁calls▁end｜>",))
_DEEPSEEK_CALL = Pair(("<｜tool▁call▁begin｜>",), ("<｜tool▁call▁end｜>",))
_KIMI_THINK = Thoughts(("<think>",), ("</think>",), calls_inside=True)

_ALL = (
    Format("hermes", JsonCalls(), _TOOL_CALL, THINK),
    _xml(
        "qwen3_xml",
        _TOOL_CALL,
        lines=True,
        thoughts=Thoughts(("<think>",), ("</think>",), calls_inside=True),
    ),
    _xml(
        "seed_oss",
        Pair(("<seed:tool_call>",), ("</seed:tool_call>",)),
        lines=False,
        thoughts=Thoughts(("<seed:think>",), ("</seed:think>",)),
    ),
    Format(
        "llama3_json",
        JsonCalls(),
        Pair(("<|python_tag|>",), ("<|eom_id|>",)),
        unmarked=True,
        silent=("<|eom_id|>", "<|eot_id|>"),
        trim=False,
    ),
    Format(
        "llama4_pythonic",
        PythonCalls(),
        Pair(("<|python_start|>",), ("<|python_end|>",)),
        unmarked=True,
        silent=("<|python_end|>", "<|eom|>", "<|eot|>"),
        trim=False,
    ),
    Format(
        "mistral",
        NamedCalls(("[ARGS]", "[CALL_ID]", "{"), id_mark="[CALL_ID]", or_json=True),
        Pair(("[TOOL_CALLS]",)),
        Thoughts(("[THINK]", "<think>"), ("[/THINK]", "</think>")),
        trim=False,
    ),
    Format(
        "deepseek_v3",
        NamedCalls(
            ("\n",),
            _DEEPSEEK_CALL,
            after="<｜tool▁sep｜>",
            skip=("```json", "```"),
        ),
        _DEEPSEEK_SECTION,
        THINK,
        many=True,
    ),
    Format(
        "deepseek_v31",
        NamedCalls(("<｜tool▁sep｜>",), _DEEPSEEK_CALL),
        _DEEPSEEK_SECTION,
        THINK,
        many=True,
    ),
    _deepseek("deepseek_v32", "", "function_calls"),
    _deepseek("deepseek_v4", "", "tool_calls"),
    _deepseek("deepseek_v41", " ", "calls"),
    Format("gpt_oss", trim=False, harmony=True),
    Format(
        "glm4",
        TaggedCalls(
            open="",
            name_end="\n",
            close="</tool_call>",
            key_open="<arg_key>",
            key_end="</arg_key>",
            key_tag_end="<arg_value>",
            value_end="</arg_value>",
        ),
        _TOOL_CALL,
        THINK,
    ),
    Format(
        "kimi_k2",
        NamedCalls(
            ("<|tool_call_argument_begin|>",),
            Pair(("<|tool_call_begin|>",), ("<|tool_call_end|>",)),
            pattern=r"\s*(?:functions\.)?([^\s<>]+?)(?::\d+)?\s*",
        ),
        Pair(("<|tool_calls_section_begin|>",), ("<|tool_calls_section_end|>",)),
        _KIMI_THINK,
        many=True,
        trim=False,
    ),
    Format(
        "kimi_k3",
        TaggedCalls(
            open='<|open|>call tool="',
            name_end='"',
            tag_end="<|sep|>",
            close="<|close|>call<|sep|>",
            key_open='<|open|>argument key="',
            key_end='"',
            key_tag_end="<|sep|>",
            value_end="<|close|>argument<|sep|>",
            entities=True,
        ),
        Pair(("<|open|>tools<|sep|>",), ("<|close|>tools<|sep|>",)),
        Thoughts(
            ("<|open|>think<|sep|>",),
            ("<|close|>think<|sep|>", "<|open|>response<|sep|>"),
            trim=False,
            calls_inside=True,
        ),
        many=True,
        silent=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        trim=False,
    ),
    Format(
        "gemma4",
        NamedCalls(("{",), pattern=r"\s*call:([^\s{}]+)\s*", dialect=GEMMA),
        Pair(("<|tool_call>",), ("<tool_call|>",)),
        Thoughts(("<|channel>thought",), ("<channel|>",)),
        trim=False,
    ),
)

FORMATS = {format.name: format for format in _ALL}
