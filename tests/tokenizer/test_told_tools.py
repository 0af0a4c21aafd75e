"""Tools told in words."""

from typing import Any

import pytest

from radixserve.tokenizer.told_tools import told_tools

TOOL = {"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "go", "arguments": {"to": "é"}}}
HI = {"role": "user", "content": "hi"}


def told(*messages: dict[str, Any], tools: Any = None, takes_system: bool = True) -> list[Any]:
    return told_tools(messages, tools, takes_system=takes_system)


def test_tools_follow_the_system_message() -> None:
    system, user = told({"role": "system", "content": "Be brief."}, HI, tools=[TOOL])
    assert user == HI
    assert system["role"] == "system"
    rule, _, block = system["content"].partition("\n\n")
    assert rule == "Be brief." and block.startswith("# Tools")
    assert '\n{"type": "function", "function": {"name": "go", ' in block


def test_without_a_system_message_they_are_one() -> None:
    system, user = told(HI, tools=[TOOL])
    assert system["role"] == "system" and system["content"].startswith("# Tools")
    assert user == HI


def test_where_the_template_takes_no_system_message_the_user_tells_them() -> None:
    (user,) = told(HI, tools=[TOOL], takes_system=False)
    assert user["role"] == "user"
    assert user["content"].startswith("# Tools") and user["content"].endswith("\n\nhi")


def test_calls_and_results_are_told_with_or_without_tools() -> None:
    asked = {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, CALL]}
    results = [{"role": "tool", "content": str(n), "tool_call_id": str(n)} for n in range(2)]
    _, said, answered, last = told(HI, asked, *results, HI)
    call = '<tool_call>\n{"name": "go", "arguments": {"to": "é"}}\n</tool_call>'
    assert said == {"role": "assistant", "content": f"Let me see.\n{call}\n{call}"}
    assert answered["role"] == "user" and last == HI
    assert answered["content"] == (
        "<tool_response>\n0\n</tool_response>\n<tool_response>\n1\n</tool_response>"
    )


@pytest.mark.parametrize("tools", [None, []])
def test_without_tools_nothing_changes(tools: Any) -> None:
    messages = [HI, {"role": "assistant", "content": "a", "reasoning_content": "b"}, HI]
    assert told(*messages, tools=tools) == messages
