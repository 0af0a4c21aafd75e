"""The reader of the recorded workloads, on small sets made here and on the real ones if present."""

from pathlib import Path

import pytest

from bench.bound import Prefixes
from bench.workloads import DATA, IDS, load, names
from radixserve.simulate.workloads import Missing


def test_text_becomes_chats_and_prompts(data: Path) -> None:
    first, second, third = load("talk", data=data)
    assert first.messages == (("system", "Be good.\n\n[{}]"), ("user", "Hello you"))
    assert second.messages == (("user", "Hello you"), ("assistant", None), ("user", "more"))
    assert (second.n, second.after, second.max_out) == (2, (0,), 9)
    assert third.prompt == "Himore" and not third.messages


def test_limits_leave_out_what_follows_from_the_long(data: Path) -> None:
    assert [request.id for request in load("talk", data=data, limit=2)] == [0, 1]
    assert [request.id for request in load("talk", data=data, longest=4)] == [2]


@pytest.mark.parametrize(("block", "lengths", "out"), [(0, [1000, 513], 512), (16, [32, 17], 16)])
def test_mooncake_shares_exactly_its_common_blocks(
    data: Path, block: int, lengths: list[int], out: int
) -> None:
    first, second = load("mooncake_conversation", data=data, block=block)
    size = block or 512
    assert [first.length, second.length] == lengths
    assert first.prompt[:size] == second.prompt[:size]
    assert first.prompt[size] != second.prompt[size]
    assert first.max_out == out and second.at == 1.5
    assert all(number in IDS for number in first.prompt)


def test_agentic_ids_mean_something_inside_their_session_only(data: Path) -> None:
    first, second, other = load("agentic_code", data=data)
    assert first.length == 130 and first.prompt[:128] == second.prompt[:128]
    assert first.prompt[128:] != second.prompt[128:]
    assert first.prompt[:64] != other.prompt[:64]
    assert (second.at, second.after, other.after) == (6.0, (0,), ())


def test_azure_prompts_share_nothing(data: Path) -> None:
    first, second = load("azure_code", data=data)
    assert first.length == second.length == 48 and first.prompt != second.prompt
    assert second.at == 2.0


def test_a_missing_set_is_named_with_what_there_is(data: Path, tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"talk"):
        load("nowhere", data=data)
    with pytest.raises(Missing, match="there is: nothing"):
        load("gsm8k", data=tmp_path / "empty")


@pytest.mark.skipif(not DATA.exists(), reason="the recorded workloads are not beside this clone")
@pytest.mark.parametrize("name", names())
def test_every_real_set_can_be_read(name: str) -> None:
    requests = load(name, limit=20, block=16)
    assert len(requests) == 20
    assert all(request.length > 0 and request.max_out > 0 for request in requests)
    assert all(before < request.id for request in requests for before in request.after)


@pytest.mark.skipif(not DATA.exists(), reason="the recorded workloads are not beside this clone")
def test_the_bound_of_mooncake_is_that_of_its_paper_in_small() -> None:
    """BOUNDS.md of the data gives 37.4 % of tokens for the whole trace with an infinite cache."""
    prefixes, total, hits = Prefixes(), 0, 0
    for request in load("mooncake_conversation", block=1):
        total += request.length
        hits += prefixes.add(request.prompt)
    assert 0.35 < hits / total < 0.39
