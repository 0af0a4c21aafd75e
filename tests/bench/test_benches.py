"""The benches against a fake server whose cache and counts are known."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import bound, record, serve, ttft
from bench.workloads import Request
from tests.bench.fake_server import FakeServer, running


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


# ---- the bound -----------------------------------------------------------------------------------


def test_prefixes_count_what_an_infinite_cache_has() -> None:
    prefixes = bound.Prefixes()
    hits = [prefixes.add(text) for text in ("abcd", "abxy", "abcd", "abcdef", "", "zabcd", "a")]
    assert hits == [0, 2, 3, 4, 0, 0, 0], "the last token of a prompt is never counted"


def test_roles_are_part_of_a_chat_in_words() -> None:
    one = bound.words([{"role": "user", "content": "a b"}])
    other = bound.words([{"role": "system", "content": "a b"}])
    assert len(one) == 3 and one[1:] == other[1:] and one[0] != other[0]


def test_the_bound_in_tokens_uses_the_folder_s_own_template(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocab = {word: k for k, word in enumerate(["<u>", "user", "x", "y", "<unk>"])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": "{% for m in messages %}<u> {{ m.role }} {{ m.content }} {% endfor %}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    encode = bound.tokenizer(tmp_path)
    assert encode([{"role": "user", "content": "x y"}]) == [0, 1, 2, 3]
    assert encode("y x") == [3, 2]
    assert encode([5, 6]) == [5, 6]


# ---- serve ---------------------------------------------------------------------------------------


def test_closed_loop_reports_the_cache_and_honours_after(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running() as server:
        arguments = ["--base-url", server.base_url, "--data", str(data), "--set", "talk"]
        assert serve.main([*arguments, "--users", "2", "--max-out", "5"]) == 0
    result = last_line(capsys)
    assert (result["ok"], result["failed"], result["unfinished"]) == (3, 0, 0)
    assert result["model"] == "fake"
    assert result["output_tokens"] == 5 + 5 + 4
    assert result["bound_cached"] == result["cached_tokens"]
    assert result["bound_prompt"] == result["prompt_tokens"]
    assert result["ttft_p50_s"] > 0 and result["itl_p95_s"] >= 0
    bodies = [body for body in server.seen if "messages" in body]
    assert bodies[1]["messages"][1] == {"role": "assistant", "content": "w0 w1 w2 w3 w4 "}
    assert bodies[1]["n"] == 2


def test_users_bound_what_is_under_way(tmp_path: Path) -> None:
    import asyncio

    from bench.client import connect

    requests = [
        Request(id=k, session="s", max_out=3, prompt=[k, k], after=(0,) if k else ())
        for k in range(12)
    ]

    async def play(server: FakeServer) -> serve.Run:
        run = serve.Run(requests, 0, {})
        async with connect(server.base_url, "", 3) as client:
            await run.closed(client, "fake", 3)
        run.close()
        return run

    with running() as server:
        run = asyncio.run(play(server))
    assert len(run.outcomes) == 12 and server.most_under_way <= 3
    assert server.seen[0]["prompt"] == [0, 0]
    assert all(
        outcome.sent_at >= run.outcomes[0].done_at for k, outcome in run.outcomes.items() if k
    )


def test_open_loop_keeps_the_recorded_times(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running() as server:
        arguments = ["--base-url", server.base_url, "--data", str(data), "--block", "4"]
        assert serve.main([*arguments, "--set", "mooncake_conversation", "--rate", "10"]) == 0
    result = last_line(capsys)
    assert result["total_s"] >= 0.15, "the second request comes 1.5 s / 10 after the first"
    assert result["cached_tokens"] == result["bound_cached"] == 4
    assert result["bound_unit"] == "tokens"


def test_time_is_bounded(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running() as server:
        arguments = ["--base-url", server.base_url, "--data", str(data), "--max-seconds", "0.5"]
        serve.main([*arguments, "--set", "mooncake_conversation", "--rate", "0.01"])
    result = last_line(capsys)
    assert result["unfinished"] == 1 and result["total_s"] < 5


def test_failures_are_counted_and_told(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running("refuse") as server:
        arguments = ["--base-url", server.base_url, "--data", str(data), "--set", "talk"]
        assert serve.main(arguments) == 1
    result = last_line(capsys)
    assert result["failed"] == 3 and "HTTP 400" in result["first_error"]
    assert result["ttft_p50_s"] is None and result["cached_tokens"] is None


def test_absent_data_is_skipped_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve.main(["--data", str(tmp_path), "--set", "gsm8k"]) == 0
    assert capsys.readouterr().out.startswith("skipped: no set 'gsm8k'")


# ---- ttft ----------------------------------------------------------------------------------------


def small(server: FakeServer) -> list[str]:
    return ["--base-url", server.base_url, "--shared", "100", "--own", "5", "--rounds", "2"]


def test_ttft_asks_cold_hot_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as server:
        assert ttft.main(small(server)) == 0
    result = last_line(capsys)
    assert result["prompt_tokens"] == 105 and result["shared_tokens"] == 100
    assert (result["cold_cached"], result["hot_cached"], result["back_cached"]) == (0, 100, 100)
    assert result["ratio"] == result["cold_s"] / result["hot_s"]
    prompts = [body["prompt"] for body in server.seen]
    assert len(prompts) == 2 + 3 * 2
    assert prompts[2][:100] == prompts[3][:100] == prompts[7][:100] != prompts[4][:100]
    assert prompts[0][:100] == prompts[4][:100]
    assert len({tuple(prompt[100:]) for prompt in prompts}) == len(prompts), "own tokens are fresh"


@pytest.mark.parametrize(
    ("flaw", "says"),
    [("miscount", "the server counted 112"), ("no-cache", "0 of 100"), ("refuse", "HTTP 400")],
)
def test_ttft_fails_on_a_server_that_does_otherwise(
    capsys: pytest.CaptureFixture[str], flaw: str, says: str
) -> None:
    with running(flaw) as server:
        assert ttft.main(small(server)) == 1
    assert says in capsys.readouterr().err


def test_ttft_without_reported_hits_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with running("no-usage-details") as server:
        assert ttft.main(small(server)) == 0
    assert last_line(capsys)["hot_cached"] is None


def test_ttft_can_send_words_of_one_token_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from itertools import product

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = ["".join(pair) for pair in product("abcdefghijk", repeat=3)]
    vocab = {word: k for k, word in enumerate(["Ġ" + word for word in letters] + ["<unk>", "abc"])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with running() as server:
        assert ttft.main([*small(server), "--tokenizer", str(tmp_path)]) == 0
    assert isinstance(server.seen[0]["prompt"], str)
    assert last_line(capsys)["hot_cached"] == 100


# ---- record --------------------------------------------------------------------------------------


def test_a_record_says_what_it_depends_on(tmp_path: Path) -> None:
    for number in range(2):
        file = record.append("ttft", record.entry("python -m bench.ttft", {"k": number}), tmp_path)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["result"]["k"] for line in lines] == [0, 1]
    assert set(lines[0]) == {"date", "commit", "machine", "command", "result"}
    assert lines[0]["machine"]["torch"] and lines[0]["machine"]["cores"] > 0


def test_an_unknown_bench_is_not_run() -> None:
    assert record.main(["nonsense"]) == 2
    assert record.main([]) == 2
