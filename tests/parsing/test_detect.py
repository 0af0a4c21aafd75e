"""The format that a chat template wants: own snippets, and real templates where they are at hand.

The real ones are the 70 of llama.cpp, as in the source distribution of llama-cpp-python 0.3.36
(`vendor/llama.cpp/models/templates`). RADIXSERVE_TEMPLATES names the folder.
"""

import os
from pathlib import Path

import pytest

from radixserve.parsing.detect import detect, tokens_as_text
from radixserve.parsing.formats import FORMATS

TEMPLATES = os.environ.get("RADIXSERVE_TEMPLATES", "")

SNIPPETS = [
    ("{{ '<tool_call>' }}{{ c.arguments | tojson }}{{ '</tool_call>' }}", "hermes", False),
    (
        "<think>\n{{ m.reasoning_content }}</think><tool_call>{{ c|tojson }}</tool_call>",
        "hermes",
        True,
    ),
    ("<tool_call>\n<function={{ c.name }}>\n<parameter={{ k }}>\n</tool_call>", "qwen3_xml", False),
    ("{{ content.split('</think>')[-1] }}<tool_call><arg_key>{{ k }}</arg_key>", "glm4", True),
    ("<|start|>assistant<|channel|>commentary to=functions.f<|message|>", "gpt_oss", False),
    ("{%- set dsml = '｜DSML｜' -%}<{{ dsml }}function_calls></think>", "deepseek_v32", True),
    ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n", "deepseek_v3", False),
    ("<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}</think>", "deepseek_v31", True),
    ("[TOOL_CALLS]{{ f }}[ARGS]", "mistral", False),
    ("[THINK]{{ r }}[/THINK][TOOL_CALLS]{{ f }}[ARGS]", "mistral", True),
    ("<|open|>{{ t }}<|sep|><|close|>", "kimi_k3", True),
    ('{{ \'<|start_header_id|>\' }}{"name": f, "parameters": {}}', "llama3_json", False),
    ("<mm:think>{{ r }}</mm:think>{{ ns ~ '<tool_call>' }}", "minimax_m3", True),
    ("<|im_start|>{{ m.content.split('</think>')[1] }}", "reasoning", True),
]

REAL = {
    "Apertus-8B-Instruct": "apertus +",
    "Apriel-1.6-15b-Thinker-fixed": "tool_calls +",
    "Bielik-11B-v3.0-Instruct": "hermes +",
    "ByteDance-Seed-OSS": "seed_oss +",
    "Cohere2MoE": "command_r7b +",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command_r_plus",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command_r7b +",
    "GLM-4.6": "glm4 +",
    "GLM-4.7-Flash": "glm4 +",
    "GigaChat3-10B-A1.8B": "gigachat",
    "GigaChat3.1-10B-A1.8B": "gigachat",
    "HuggingFaceTB-SmolLM3-3B": "reasoning +",  # this copy prints no tools
    "Kimi-K2-Instruct": "kimi_k2",
    "Kimi-K2-Thinking": "kimi_k2 +",
    "Kimi-K3": "kimi_k3 +",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-8B-A1B": "lfm2 +",
    "LFM2.5-Instruct": "lfm2 +",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "tool_calls",
    "MiniMax-M2": "minimax_m2 +",
    "MiniMax-M3": "minimax_m3 +",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_xml +",
    "NVIDIA-Nemotron-Nano-v2": "nemotron_nano +",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes +",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes +",
    "Qwen3-Coder": "qwen3_xml",
    "Qwen3.5-4B": "qwen3_xml +",
    "Reka-Edge": "hermes +",
    "Spark2.5": "glm4 +",
    "StepFun3.5-Flash": "qwen3_xml +",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek_v3 +",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek_v3 +",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v31 +",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32 +",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4 +",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek_v4 +",
    "fireworks-ai-llama-3-firefunction-v2": "firefunction",
    "google-gemma-2-2b-it": "",
    "google-gemma-4-31B-it": "gemma4 +",
    "google-gemma-4-31B-it-interleaved": "gemma4 +",
    "ibm-granite-granite-3.3-2B-Instruct": "granite3 +",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm4 +",
    "llama-cpp-deepseek-r1": "deepseek_v3 +",
    "llama-cpp-rwkv-world": "reasoning +",
    "meetkai-functionary-medium-v3.1": "functionary_v31",
    "meetkai-functionary-medium-v3.2": "functionary_v32",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3_json",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3_json",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3_json",
    "microsoft-Phi-3.5-mini-instruct": "",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral +",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "moonshotai-Kimi-K2": "kimi_k2",
    "muse-glimmer": "",  # its format is not known here
    "openai-gpt-oss-120b": "gpt_oss",
    "openbmb-MiniCPM5-1B": "minicpm5 +",
    "poolside-Laguna-S-2.1": "glm4 +",
    "poolside-Laguna-XS-2.1": "glm4 +",
    "poolside-Laguna-XS.2": "glm4 +",
    "tencent-Hy3": "hunyuan3 +",
    "unsloth-Apriel-1.5": "tool_calls +",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
    "upstage-Solar-Open-100B": "solar_open +",
}  # file: format, and + if it has reasoning


@pytest.mark.parametrize(("template", "name", "thinks"), SNIPPETS)
def test_snippets(template: str, name: str, thinks: bool) -> None:
    format = detect(template)
    assert format is not None
    assert (format.name, format.thoughts is not None) == (name, thinks)


def test_a_template_without_calls_and_reasoning_has_no_format() -> None:
    assert detect("<start_of_turn>{{ m.content }}<end_of_turn>") is None


def test_special_tokens_count_where_the_template_says_nothing() -> None:
    template = "<|im_start|>{{ m.content }}<|im_end|>"
    assert detect(template) is None
    format = detect(template, ["<|tool_call_start|>", "<|tool_call_end|>"])
    assert format is not None
    assert format.name == "lfm2"


@pytest.mark.skipif(not TEMPLATES, reason="RADIXSERVE_TEMPLATES names no folder of real templates")
@pytest.mark.parametrize(("file", "wanted"), REAL.items(), ids=REAL.keys())
def test_real_templates(file: str, wanted: str) -> None:
    format = detect((Path(TEMPLATES) / f"{file}.jinja").read_text())
    found = "" if format is None else format.name + " +" * (format.thoughts is not None)
    assert found == wanted


@pytest.mark.skipif(not TEMPLATES, reason="RADIXSERVE_TEMPLATES names no folder of real templates")
def test_no_real_template_is_left_out() -> None:
    assert {path.stem for path in Path(TEMPLATES).glob("*.jinja")} == REAL.keys()


def test_special_tokens_that_the_parser_must_see() -> None:
    kimi = ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "<|im_end|>"]
    assert tokens_as_text(FORMATS["kimi_k3"], kimi) == {"<|open|>", "<|close|>", "<|sep|>"}
    harmony = ["<|start|>", "<|channel|>", "<|return|>", "<|endoftext|>"]
    assert tokens_as_text(FORMATS["gpt_oss"], harmony) == {"<|start|>", "<|channel|>", "<|return|>"}
    assert tokens_as_text(FORMATS["gemma4"], ['<|"|>', "<|tool_call>", "<eos>"]) == {
        '<|"|>',
        "<|tool_call>",
    }
    assert tokens_as_text(FORMATS["hermes"], ["</s>", "<|im_end|>", ""]) == frozenset()
