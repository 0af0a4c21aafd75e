"""Chat templates: rendered as transformers does, errors told, prefixes stable."""

import json
from pathlib import Path
from typing import Any

import pytest

from radixserve.tokenizer.conversation import conversation
from radixserve.tokenizer.invalid import InvalidRequest
from radixserve.tokenizer.templates import ChatTemplate, find_template
from radixserve.tokenizer.vocabulary import Vocabulary
from tests.tokenizer import folders

USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary(folders.byte_level(tmp_path_factory.mktemp("bytes")))


def render(source: str, vocabulary: Vocabulary, *messages: dict[str, Any], **options: Any) -> str:
    return ChatTemplate(source, vocabulary).render(messages or [USER], **options)


def talk(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return conversation(messages, knows_developer=False)


TOOLS = [{"type": "function", "function": {"name": "b", "a": "日本", "z": {"y": 1, "x": "<>&'"}}}]
ODD = """
{%- set ns = namespace(n=0) %}
{% for message in messages -%}
    {%- if message.role == "skip" %}{% continue %}{% endif %}
    {%- set ns.n = ns.n + 1 %}
  {{ bos_token }}[{{ message.role }}] {{ message['content'] | trim }}{{ eos_token }}
{% endfor %}
{%- if tools %}{{ tools | tojson(indent=2) }}{{ tools | tojson }}{% endif %}
{% generation %}{{ ns.n }}{% endgeneration %}
{%- if add_generation_prompt %}go{{ flavour | default('') }}{% endif %}
"""


@pytest.mark.parametrize("source", [folders.CHATML, ODD])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_as_transformers_renders(source: str, tools: Any, vocabulary: Vocabulary) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "system", "content": " s\n"}, USER, {"role": "skip", "content": "-"}]
    expected = render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=source,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="<|im_end|>",
        flavour="x",
    )
    got = render(source, vocabulary, *messages, tools=tools, variables={"flavour": "x"})
    assert got == expected[0][0]


def test_tools_keep_their_order_and_characters(vocabulary: Vocabulary) -> None:
    assert render("{{ tools | tojson }}", vocabulary, tools=TOOLS) == json.dumps(
        TOOLS, ensure_ascii=False
    )


def test_a_template_may_refuse(vocabulary: Vocabulary) -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}", vocabulary)


@pytest.mark.parametrize(
    "source",
    ["{{ messages[9].role.x }}", "{{ 1 + 'a' }}", "{{ ''.__class__.__mro__ }}", "{{ 1/0 }}"],
)
def test_failures_say_nothing_of_python(source: str, vocabulary: Vocabulary) -> None:
    with pytest.raises(InvalidRequest, match=r"^the model's chat template cannot") as caught:
        render(source, vocabulary)
    assert "Error" not in str(caught.value)


def test_deep_tools_are_refused(vocabulary: Vocabulary) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="too deep"):
        render("{{ tools | tojson }}", vocabulary, tools=[{"x": deep}])


def test_own_variables_cannot_be_replaced(vocabulary: Vocabulary) -> None:
    with pytest.raises(InvalidRequest, match="bos_token"):
        render("", vocabulary, variables={"bos_token": "x"})


def test_the_date_stays_that_of_the_start(vocabulary: Vocabulary) -> None:
    template = ChatTemplate("{{ strftime_now('%H:%M:%S.%f') }}", vocabulary)
    assert template.render([USER]) == template.render([USER])


@pytest.mark.parametrize("prefill", ["OK!\n", "1 2 ", "", " x", "{{ 7*7 }}"])
def test_the_prompt_ends_exactly_with_the_prefill(prefill: str, vocabulary: Vocabulary) -> None:
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}"
    template = ChatTemplate(source, vocabulary)
    text = template.render_prefill([USER, {"role": "assistant", "content": prefill}])
    assert text == "[user]hi[end][assistant]" + prefill


def test_where_templates_are_found(tmp_path: Path) -> None:
    folder = folders.byte_level(tmp_path, template=None)
    vocabulary = Vocabulary(folder)
    assert find_template(folder, vocabulary, "") is None

    def text(override: str = "") -> str:
        template = find_template(folder, Vocabulary(folder), override)
        assert template is not None
        return template.render([USER])

    (folder / "chat_template.json").write_text('{"chat_template": "json"}')
    assert text() == "json"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert text() == "d"
    (folder / "chat_template.jinja").write_text("jinja")
    assert text() == "jinja"
    (folder / "mine").write_text("mine")
    assert text(str(folder / "mine")) == "mine"


def test_parts_are_joined_and_roles_mapped() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = talk(
        {"role": "developer", "content": "d"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "name": "n", "audio": None, "reasoning": "r"},
        {"role": "tool", "content": parts, "tool_call_id": "c"},
    )
    assert messages == [
        {"role": "system", "content": "d"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "", "name": "n", "reasoning_content": "r"},
        {"role": "tool", "content": "a\nb", "tool_call_id": "c"},
    ]
    assert conversation([{"role": "developer", "content": ""}], knows_developer=True) == [
        {"role": "developer", "content": ""}
    ]


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ('{"b": 1, "a": "é"}', {"b": 1, "a": "é"}),
        ('{"b": ', '{"b": '),
        ('"text"', '"text"'),
        ('{"a": "\\ud83d"}', '{"a": "\\ud83d"}'),
        ("[" * 100_000, "[" * 100_000),
        ("", {}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_tool_arguments_become_objects(arguments: object, parsed: object) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (message,) = talk({"role": "assistant", "tool_calls": [call]})
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": parsed}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 7}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": "x", "name": 3}, "messages[0].name"),
        ({"role": "assistant", "function_call": {}}, "messages[0].function_call"),
        ({"role": "assistant", "tool_calls": {"a": 1}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [3]}, "messages[0].tool_calls[0]"),
    ],
)
def test_bad_messages_are_named(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        talk(message)
    assert caught.value.param == param


def test_no_messages() -> None:
    with pytest.raises(InvalidRequest):
        talk()
