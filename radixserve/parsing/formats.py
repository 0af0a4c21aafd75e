"""The formats that are known, by name. `detect.py` tells which one a chat template wants.

Sources: the models' chat templates; for DeepSeek V3.2 and later and Kimi K3 their encoders;
openai/harmony for gpt-oss; mistral-common for Mistral; Meta's prompt format pages for Llama.
"""

from typing import Any

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


def _xml(name: str, section: Pair, *, lines: bool, thoughts: Thoughts) -> Format:
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


def _invoke(name: str, section: Pair, prefix: str = "", thoughts: Thoughts = THINK) -> Format:
    """`<invoke name="f"><parameter name="k">`: MiniMax, and DeepSeek V3.2 and later (DSML)."""
    calls = TaggedCalls(
        open=f'<{prefix}invoke name="',
        name_end='"',
        tag_end=">",
        close=f"</{prefix}invoke>",
        key_open=f'<{prefix}parameter name="',
        key_end='"',
        key_tag_end=">",
        value_end=f"</{prefix}parameter>",
        typed_by="string" if prefix else "",
    )
    return Format(name, calls, section, thoughts, many=True)


def _tag(name: str) -> Pair:
    return Pair((f"<{name}>",), (f"</{name}>",))


def _json(
    name: str,
    section: Pair,
    thoughts: Thoughts | None = None,
    calls: JsonCalls = JsonCalls(),  # noqa: B008 (immutable)
    **more: Any,
) -> Format:
    return Format(name, calls, section, thoughts, **more)


_TOOL_CALL = _tag("tool_call")
_COHERE_CALLS = JsonCalls(("tool_name", "name"), ("parameters", "arguments"))
_LLAMA_CALLS = JsonCalls(arguments=("parameters", "arguments", "args"))
_THINK_OR_CALL = Thoughts(("<think>",), ("</think>",), calls_inside=True)
_DEEPSEEK_SECTION = Pair(("<｜tool▁calls▁begin｜>",), ("<｜tool▁calls▁end｜>",))
_DEEPSEEK_CALL = Pair(("<｜tool▁call▁begin｜>",), ("<｜tool▁call▁end｜>",))

_ALL = (
    Format("json", JsonCalls(), unmarked=True),
    _json("hermes", _TOOL_CALL, THINK),
    _json(
        "tool_calls",
        _tag("tool_calls"),
        Thoughts(
            ("<thinking>", "Here are my reasoning steps:"),
            ("</thinking>", "[BEGIN FINAL RESPONSE]"),
        ),
    ),
    _json("nemotron_nano", _tag("TOOLCALL"), THINK),
    _json(
        "command_r7b",
        Pair(("<|START_ACTION|>",), ("<|END_ACTION|>",)),
        Thoughts(("<|START_THINKING|>",), ("<|END_THINKING|>",), anywhere=True),
        _COHERE_CALLS,
        silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    _json(
        "command_r_plus",
        Pair(tuple(f"Action:{gap}```json" for gap in (" ", "", "\n")), ("```",)),
        calls=_COHERE_CALLS,
    ),
    _json(
        "granite3",
        Pair(("<|tool_call|>", "<tool_call>"), ("<|/tool_call|>", "</tool_call>")),
        THINK,
        silent=("<response>", "</response>"),
    ),
    _json(
        "gigachat", Pair(("<|function_call|>", "function call<|role_sep|>"), ("<|message_sep|>",))
    ),
    _json("firefunction", Pair((" functools", "functools"))),
    Format(
        "apertus",
        JsonCalls(keyed=True),
        Pair(("<|tools_prefix|>",), ("<|tools_suffix|>",)),
        Thoughts(("<|inner_prefix|>",), ("<|inner_suffix|>",), anywhere=True),
    ),
    _xml(
        "qwen3_xml",
        _TOOL_CALL,
        lines=True,
        thoughts=_THINK_OR_CALL,
    ),
    _xml(
        "seed_oss",
        _tag("seed:tool_call"),
        lines=False,
        thoughts=Thoughts(("<seed:think>",), ("</seed:think>",)),
    ),
    Format(
        "llama3_json",
        _LLAMA_CALLS,
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
        Thoughts(("[THINK]", "<think>"), ("[/THINK]", "</think>"), anywhere=True),
        trim=False,
    ),
    Format(
        "deepseek_v3",
        NamedCalls(
            ("\n",),
            _DEEPSEEK_CALL,
            after="<｜tool▁sep｜>",
            lead="function",
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
    _invoke("deepseek_v32", _tag("｜DSML｜function_calls"), "｜DSML｜"),
    _invoke("deepseek_v4", _tag("｜DSML｜tool_calls"), "｜DSML｜"),
    _invoke("deepseek_v41", _tag("｜DSML｜ calls"), "｜DSML｜ "),
    Format("minimax_m3", thoughts=Thoughts(("<mm:think>",), ("</mm:think>",))),  # no calls yet
    _invoke("minimax_m2", _tag("minimax:tool_call"), thoughts=_THINK_OR_CALL),
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
            lead="functions\\.",
            tail=":[0-9]{1,3} ?",
        ),
        Pair(("<|tool_calls_section_begin|>",), ("<|tool_calls_section_end|>",)),
        _THINK_OR_CALL,
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
            numbered=True,
            typed_by="type",
        ),
        Pair(("<|open|>tools<|sep|>",), ("<|close|>tools<|sep|>",)),
        Thoughts(
            ("<|open|>think<|sep|>",),
            ("<|close|>think<|sep|>", "<|open|>response<|sep|>"),
            trim=False,
            calls_inside=True,
            anywhere=True,
        ),
        many=True,
        silent=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        trim=False,
    ),
    Format(
        "gemma4",
        NamedCalls(("{",), pattern=r"\s*call:([^\s{}]+)\s*", lead="call:", dialect=GEMMA),
        Pair(("<|tool_call>",), ("<tool_call|>",)),
        Thoughts(("<|channel>thought",), ("<channel|>",), anywhere=True),
        trim=False,
    ),
    Format(
        "lfm2",
        PythonCalls(),
        Pair(("<|tool_call_start|>",), ("<|tool_call_end|>",)),
        THINK,
    ),
    Format(
        "hunyuan3",
        TaggedCalls(
            open="<tool_call:opensource>",
            name_end="<tool_sep:opensource>",
            close="</tool_call:opensource>",
            key_open="<arg_key:opensource>",
            key_end="</arg_key:opensource>",
            key_tag_end="<arg_value:opensource>",
            value_end="</arg_value:opensource>",
        ),
        _tag("tool_calls:opensource"),
        Thoughts(("<think:opensource>",), ("</think:opensource>",)),
        many=True,
    ),
    Format(
        "solar_open",
        NamedCalls(
            ("<|tool_call:args|>",),
            Pair(("<|tool_call:begin|>",), ("<|tool_call:end|>",)),
            after="<|tool_call:name|>",
            lead=r"[\w-]{1,64}",
        ),
        Pair(("<|tool_calls|>",), ("<|calls|>",)),
        Thoughts(("<|think|>",), ("<|end|>",), anywhere=True),
        many=True,
        silent=("<|begin|>assistant", "<|content|>", "<|end|>"),
    ),
    Format(
        "minicpm5",
        TaggedCalls(
            open='<function name="',
            name_end='"',
            tag_end=">",
            close="</function>",
            key_open='<param name="',
            key_end='"',
            key_tag_end=">",
            value_end="</param>",
            cdata=True,
        ),
        None,
        THINK,
    ),
    Format("functionary_v31", NamedCalls((">",)), Pair(("<function=",), ("</function>",))),
    Format(
        "functionary_v32",
        NamedCalls(("\n",)),
        Pair((">>>",)),
        silent=(">>>all\n",),
        trim=False,
        begun=">>>",
    ),
)

FORMATS = {format.name: format for format in _ALL}
