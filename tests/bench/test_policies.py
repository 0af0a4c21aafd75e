"""The bench of eviction policies: orders, sweeps, and its figures beside the simulator's."""

import json
from pathlib import Path

import pytest

from bench import policies
from bench.policies import PAGE, Stream, in_turn, merged, serve, stream
from radixserve.cache import POLICIES
from radixserve.simulate import optimum
from radixserve.simulate.workloads import Recorded
from tests.simulate.sets import text_set


def session(name: str, *numbers: int) -> list[Recorded]:
    return [Recorded(id=number, session=name, max_out=1) for number in numbers]


def talk(folder: Path, sessions: int = 6, turns: int = 4, shared: int = 20) -> Path:
    """Chats with a common beginning, each of whose turns takes up the last one's answer."""
    segments = ["common " * shared]
    requests = []
    for number in range(sessions):
        prompt = [["user", 0]]
        for turn in range(turns):
            segments += [f"q{number}.{turn} " * 5, f"a{number}.{turn} " * 9]
            prompt = [*prompt, ["user", len(segments) - 2]]
            answer = len(segments) - 1
            requests.append({"session": str(number), "prompt": prompt, "outputs": [answer]})
            prompt = [*prompt, ["assistant", answer]]
    return text_set(folder, requests, segments)


def test_users_take_turns_and_whoever_is_through_begins_anew() -> None:
    sessions = [session("a", 1, 2, 3), session("b", 4), session("c", 5, 6)]
    assert [request.id for request in in_turn(sessions, 2)] == [1, 4, 2, 5, 3, 6]
    assert [request.id for request in in_turn(sessions, 1)] == [1, 2, 3, 4, 5, 6]
    assert [request.id for request in in_turn(sessions, 9)] == [1, 4, 5, 2, 6, 3]


def test_a_merge_keeps_each_session_in_order() -> None:
    sessions = [session("a", *range(20)), session("b", *range(20, 40))]
    numbers = [request.id for request in merged(sessions)]
    assert sorted(numbers) == list(range(40)) != numbers
    assert [n for n in numbers if n < 20] == list(range(20))
    assert [n for n in numbers if n >= 20] == list(range(20, 40))


@pytest.fixture
def calls(tmp_path: Path) -> Stream:
    talk(tmp_path / "talk")
    return stream("talk", "3", tmp_path)


@pytest.mark.parametrize("pages", [36, 48, 60, 200])
def test_the_cache_under_lru_is_the_simulators_lru(calls: Stream, pages: int) -> None:
    """But for the page that the running request has open, which the simulator does not count."""
    hits = serve(calls, "lru", pages)
    most, least = (optimum.lru(calls.calls, PAGE, pages - open_page) for open_page in (0, 1))
    assert hits.prompt == most.prompt_tokens
    assert least.cached_tokens <= hits.cached <= most.cached_tokens


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_policy_beats_the_optimum(calls: Stream, policy: str) -> None:
    for pages in (36, 48, 60):
        hits = serve(calls, policy, pages)
        assert hits.cached <= optimum.optimum(calls.calls, PAGE, pages).cached_tokens
        assert (hits.chat_prompt, hits.chat_cached) == (hits.prompt, hits.cached)


def test_a_sweep_shares_nothing_with_its_second_round(tmp_path: Path) -> None:
    talk(tmp_path / "chat")
    text_set(tmp_path / "batch", [{"prompt": [["", 0]]}, {"prompt": [["", 1]]}], ["x " * 99] * 2)
    both = stream("chat+batch", "sweep", tmp_path)
    assert both.chat == [True, False, False] * 24
    hits = serve(both, "lru", 4000)
    alone = serve(stream("chat", "16", tmp_path), "lru", 4000)
    assert hits.chat_cached == alone.cached
    assert hits.cached - hits.chat_cached == 24 * 96, "the two of a round are equal: six pages"


def test_a_run_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(tmp_path / "talk")
    monkeypatch.setattr(policies, "CASES", {"talk": {"mix": (1, 2, 3)}})
    args = ["--data", str(tmp_path), "--results", str(tmp_path)]
    assert policies.main(args) == 0
    lines = [json.loads(line) for line in (tmp_path / "policies.jsonl").read_text().splitlines()]
    assert [line["result"]["tokens"] for line in lines] == [1024, 2048, 3072]
    assert set(lines[0]["result"]["hit %"]) == {*POLICIES, "optimum"}
    table = capsys.readouterr().out
    assert "| talk | mix | 2 |" in table and "| optimum |" in table
