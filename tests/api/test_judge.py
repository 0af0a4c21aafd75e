"""A grammar that would end the process that compiles it costs its request, and nothing else."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radixserve.api import judge as judge_module
from radixserve.api.judge import GrammarJudge
from tests.api.fakes import Server
from tests.api.sending import CHAT, COMPLETIONS, MESSAGES, answer, fault_of, post

pytestmark = pytest.mark.anyio
GOOD = 'start: "a" | "b"'


def rules(depth: int) -> str:
    lines = [f"a{i}: a{i + 1}" for i in range(depth)]
    return "\n".join(["start: a0", *lines, f'a{depth}: "x"'])


def definitions(depth: int) -> dict[str, Any]:
    parts: dict[str, Any] = {
        f"d{i}": {"properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(depth)
    }
    return {"$defs": parts | {f"d{depth}": {}}, "$ref": "#/$defs/d0"}


@pytest.fixture
def judge() -> Iterator[GrammarJudge]:
    judge = GrammarJudge()
    yield judge
    judge.close()


def test_what_compiles_and_what_does_not(judge: GrammarJudge) -> None:
    for _ in range(2):
        assert judge.fault(GOOD) == ""
        assert judge.fault(rules(100)) == ""
        assert "start" in judge.fault("stop: x")
        assert judge.fault('start: "\u2028\\n é"') == ""


def test_a_long_chain_ends_the_child_alone(judge: GrammarJudge) -> None:
    for _ in range(2):
        assert "too deep" in judge.fault(rules(50_000))
        assert judge.fault(GOOD) == ""


def test_time_is_bounded(judge: GrammarJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "SECONDS", 0.0)
    assert "to compile" in judge.fault(GOOD)
    monkeypatch.undo()
    assert judge.fault(GOOD) == ""


def test_the_child_ends_with_its_judge() -> None:
    judge = GrammarJudge()
    judge.fault(GOOD)
    child = judge._child
    assert child is not None and child.poll() is None
    del judge
    gc.collect()
    assert child.poll() is not None


BIG = {"type": "integer", "maximum": 10**400}
CHAIN = definitions(20_000)
USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("schema", [CHAIN, BIG], ids=["chain", "big"])
async def test_schemas_no_process_survives_are_400_everywhere(folder: Path, schema: Any) -> None:
    function = {"type": "function", "function": {"name": "f", "parameters": schema}}
    tool = {"name": "f", "input_schema": schema}
    form = {"type": "json_schema", "schema": schema}
    asked: list[tuple[str, dict[str, Any]]] = [
        (COMPLETIONS, {"guided_json": schema}),
        (CHAT, {"response_format": form | {"json_schema": {"name": "x", "schema": schema}}}),
        (CHAT, {"tools": [function], "tool_choice": "required"}),
        (MESSAGES, {"tools": [tool], "tool_choice": {"type": "any"}}),
        (MESSAGES, {"output_config": {"format": form}}),
    ]
    async with Server(folder).client() as client:
        for route, fields in asked:
            got = await post(client, route, **fields)
            assert got.status_code == 400, (route, fields.keys(), got.text)
            fault_of(route, got)
        body = {"input": "hi", "text": {"format": form | {"name": "x"}}}
        got = await client.post("/v1/responses", content=json.dumps(body))
        assert got.status_code == 400
        await answer(client, CHAT, guided_grammar=GOOD)
