"""What models of each family really write, their slips included."""

from typing import Any

import pytest

from radixserve.parsing.formats import FORMATS
from radixserve.parsing.tools import Tool
from tests.parsing.reading import read
from tests.parsing.writing import Answer

TOOLS = [
    Tool("f", {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}),
    Tool("g", {"properties": {}}),
]
F = ("f", {"a": "x"})
G: tuple[str, dict[str, Any]] = ("g", {})


def found(name: str, text: str, prompt: str = "", cut: bool = False) -> Answer:
    """The same for whole and piecewise text, or the test fails."""
    whole = read(FORMATS[name], [text], TOOLS, prompt=prompt, cut=cut)
    assert read(FORMATS[name], text, TOOLS, prompt=prompt, cut=cut) == whole
    return whole[0]


CASES = {
    "arguments as a string": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"x\\"}"}</tool_call>',
        Answer(calls=(F,)),
    ),
    "null arguments, and none": (
        "hermes",
        '<tool_call>{"name": "g", "arguments": null}{"name": "g"}</tool_call>',
        Answer(calls=(G, G)),
    ),
    "arguments before the name": (
        "hermes",
        '<tool_call>{"id": "1", "arguments": {"a": "x"}, "name": "f"}</tool_call>',
        Answer(calls=(F,)),
    ),
    "raw line breaks in a string": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>',
        Answer(calls=(("f", {"a": "x\ny"}),)),
    ),
    "no closing tag": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "x"}}',
        Answer(calls=(F,)),
    ),
    "not JSON": (
        "hermes",
        "Use <tool_call>f(1)</tool_call> here.",
        Answer(content="Use <tool_call>f(1)</tool_call> here."),
    ),
    "a call, then one that is not JSON": (
        "hermes",
        '<tool_call>{"name": "g"}</tool_call><tool_call>{"name": </tool_call>',
        Answer(content='<tool_call>{"name": </tool_call>', calls=(G,)),
    ),
    "text between calls keeps its spaces": (
        "hermes",
        'One\n<tool_call>{"name": "g"}</tool_call>\n\ntwo\n<tool_call>{"name": "g"}</tool_call>\n',
        Answer(content="One\n\n\ntwo", calls=(G, G)),
    ),
    "a word about thinking": (
        "hermes",
        "The tag <think> begins </think> reasoning. ",
        Answer(content="The tag <think> begins </think> reasoning. "),
    ),
    "thinking that never began": ("hermes", "\n</think>\n\nHi", Answer(content="Hi")),
    "thinking twice": (
        "hermes",
        "<think>\na\n</think>\n<think>b</think>c",
        Answer(reasoning="a\nb", content="c"),
    ),
    "a call out of the middle of thinking": (
        "qwen3_xml",
        "<think>hm\n<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n"
        "</tool_call>",
        Answer(reasoning="hm", calls=(F,)),
    ),
    "a word about calls in the middle of thinking": (
        "qwen3_xml",
        "<think>use <tool_call> next</think>ok",
        Answer(reasoning="use <tool_call> next", content="ok"),
    ),
    "an end marker too many": (
        "qwen3_xml",
        "<tool_call><function=f><parameter=a>x</parameter></parameter></function></tool_call>",
        Answer(calls=(F,)),
    ),
    "a value with its own end marker in it": (
        "seed_oss",
        "<seed:tool_call><function=f><parameter=a></parameter> ends it</parameter></function>"
        "</seed:tool_call>",
        Answer(calls=(("f", {"a": "</parameter> ends it"}),)),
    ),
    "an integer that is none": (
        "qwen3_xml",
        "<function=f><parameter=n>7.5</parameter></function>",
        Answer(calls=(("f", {"n": "7.5"}),)),
    ),
    "JSON that answers": (
        "llama3_json",
        '{"name": "Ada", "x": 1}',
        Answer(content='{"name": "Ada", "x": 1}'),
    ),
    "JSON of an unknown tool": (
        "llama3_json",
        '{"name": "h", "parameters": {}}',
        Answer(content='{"name": "h", "parameters": {}}'),
    ),
    "several, by semicolons": (
        "llama3_json",
        '{"name": "f", "parameters": {"a": "x"}}; {"name": "g", "parameters": {}}',
        Answer(calls=(F, G)),
    ),
    "text behind a call": (
        "llama3_json",
        '{"name": "g", "parameters": {}};\nDone.',
        Answer(content=";\nDone.", calls=(G,)),
    ),
    "text that begins with a space": ("llama3_json", " Done.", Answer(content=" Done.")),
    "code behind the tag": (
        "llama3_json",
        "<|python_tag|>print(1)",
        Answer(content="<|python_tag|>print(1)"),
    ),
    "a list that is text": ("llama4_pythonic", "[see (1)]", Answer(content="[see (1)]")),
    "calls of a name without a list": ("llama4_pythonic", "f(a=1)", Answer(content="f(a=1)")),
    "a call without [ARGS]": ("mistral", '[TOOL_CALLS]f{"a": "x"}', Answer(calls=(F,))),
    "no markers around calls": (
        "kimi_k2",
        '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "x"}<|tool_call_end|>',
        Answer(calls=(F,)),
    ),
    "the answer's own tags": (
        "granite3",
        "<think>hm</think><response>Hi</response>",
        Answer("hm", "Hi"),
    ),
    "an array": (
        "granite3",
        '<|tool_call|>[{"name": "f", "arguments": {"a": "x"}}, {"name": "g", "arguments": {}}]',
        Answer(calls=(F, G)),
    ),
    "an array whose second call is broken": (
        "command_r7b",
        '<|START_ACTION|>[{"tool_name": "g", "parameters": {}}, {"tool_name": ]<|END_ACTION|>',
        Answer(content=', {"tool_name": ]<|END_ACTION|>', calls=(G,)),
    ),
    "character data": (
        "minicpm5",
        '<function name="f"><param name="a"><![CDATA[</param><b>]]></param></function>',
        Answer(calls=(("f", {"a": "</param><b>"}),)),
    ),
    "thoughts in a message of their own": (
        "solar_open",
        "<|think|>hm<|end|><|begin|>assistant<|content|>Hi<|end|>",
        Answer("hm", "Hi"),
    ),
    "arguments that are no object": (
        "gpt_oss",
        "<|channel|>commentary to=functions.f<|message|>oops<|call|>",
        Answer(content="oops"),
    ),
    "no channels at all": ("gpt_oss", "Hi <|end|> there", Answer(content="Hi <|end|> there")),
    "a self-closed call": (
        "deepseek_v4",
        '<｜DSML｜tool_calls><｜DSML｜invoke name="g"/></｜DSML｜tool_calls>',
        Answer(calls=(G,)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "wanted"), CASES.values(), ids=CASES.keys())
def test_what_models_write(name: str, text: str, wanted: Answer) -> None:
    assert found(name, text) == wanted


@pytest.mark.parametrize(
    ("name", "prompt", "text", "wanted"),
    [
        ("hermes", "assistant\n<think>\n", "hm\n</think>\n\nHi", Answer("hm", "Hi")),
        ("hermes", "assistant\n<think>\n", "<think>\nhm</think>Hi", Answer("hm", "Hi")),
        ("hermes", "<think>\n\n</think>\n\n", "Hi", Answer("", "Hi")),
        ("hermes", "Say <think>.<|im_end|>\nassistant\n", "Hi", Answer("", "Hi")),
        ("functionary_v32", "\n\n>>>", 'all\nHi >>>f\n{"a": "x"}', Answer("", "Hi ", (F,))),
        ("gpt_oss", "<|start|>assistant<|channel|>final<|message|>", "Hi", Answer("", "Hi")),
        ("gpt_oss", "<|start|>assistant<|channel|>final<|message|>We", " do", Answer("", " do")),
        ("gpt_oss", "<|start|>assistant", ' to=functions.g<|message|>{}', Answer(calls=(G,))),
        ("kimi_k3", "<|open|>response<|sep|>", "Hi<|close|>response<|sep|>", Answer("", "Hi")),
    ],
)  # fmt: skip
def test_the_prompt_may_have_begun(name: str, prompt: str, text: str, wanted: Answer) -> None:
    assert found(name, text, prompt) == wanted


@pytest.mark.parametrize(
    ("text", "by_itself"),
    [
        ('Hi<tool_call>{"name": "f", "argu', 'Hi<tool_call>{"name": "f", "argu'),
        ("Hi<tool_call>", "Hi<tool_call>"),
        ("Hi <tool", "Hi <tool"),
    ],
)
def test_an_answer_that_stops_inside_a_call(text: str, by_itself: str) -> None:
    assert found("hermes", text) == Answer(content=by_itself)
    kept = "Hi" if "<tool_call>" in text else text
    assert found("hermes", text, cut=True) == Answer(content=kept)


def test_without_tools_no_call_is_read_out_of_plain_json() -> None:
    text = '{"name": "f", "parameters": {}}'
    assert read(FORMATS["llama3_json"], [text])[0] == Answer(content=text)
