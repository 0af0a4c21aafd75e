"""Reading recorded workloads, and the token ids made of them."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from radixserve.messages import Namespace, pack, unpack
from radixserve.simulate.bound import bound
from radixserve.simulate.tokens import WORD, Encoder
from radixserve.simulate.worker import measured
from radixserve.simulate.workloads import Missing, find, read, recorded_steps
from tests.simulate.sets import DATA, blocks, needs_data, table, text_set, text_sets, write

TOKENS = "Text sets, infinite cache (tokens = word)"
SHAPE = "Shape of the radix tree (prompts only)"


def test_words_join_to_the_text() -> None:
    text = "It's  42 o'clock,\n\n_x_ é!? don'T  \t"
    pieces = WORD.findall(text)
    assert "".join(pieces) == text
    assert pieces[:5] == ["It", "'s", "  ", "4", "2"]


@needs_data
@pytest.mark.parametrize("name", text_sets())
def test_tokens_and_hit_rates_are_those_of_the_published_table(name: str) -> None:
    row, size = table(TOKENS)[name], table(SHAPE)[name][2]
    plain = bound(Encoder(outputs=False).stream(read(DATA / name)))
    samples = bound(Encoder(outputs=False, samples=True).stream(read(DATA / name)))
    assert (plain.requests, plain.prompt_tokens) == (int(row[1]), int(row[3]))
    assert f"{100 * plain.rate:.1f}" == row[6]
    assert f"{100 * samples.rate:.1f}" == row[8]
    assert plain.distinct == int(size)


@needs_data
@pytest.mark.parametrize(
    ("name", "rate"),
    [("bfcl_long_context", 89.5), ("tau_airline", 97.3), ("mt_bench", 26.2), ("oasst_val", 43.8)],
)
def test_answers_are_kept_but_for_the_token_that_nobody_computes(name: str, rate: float) -> None:
    """The table keeps the last token too, so it is a little above."""
    assert float(table(TOKENS)[name][7]) == rate
    found = 100 * bound(Encoder().stream(read(DATA / name))).rate
    assert rate - 0.25 < found <= rate + 0.05


@needs_data
@pytest.mark.parametrize(
    ("name", "block", "rate"),
    [
        ("mooncake/conversation_trace.jsonl.gz", 0, 37.4),
        ("mooncake/synthetic_trace.jsonl.gz", 0, 65.1),
        ("agentic_code", 1, 96.2),
        ("azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz", 0, 0.0),
    ],
)
def test_traces_share_what_was_recorded(name: str, block: int, rate: float) -> None:
    found = bound(Encoder(outputs=False).stream(read(DATA / name, block)))
    assert f"{100 * found.rate:.1f}" == f"{rate:.1f}"


def test_a_chat_is_role_text_end_and_the_answers_role(tmp_path: Path) -> None:
    chat = [["user", 0], ["assistant", None], ["user", 1]]
    folder = text_set(
        tmp_path,
        [{"prompt": [["user", 0]], "outputs": [1]}, {"prompt": chat, "after": [0], "n": 2}],
        ["Hello you", "yes"],
    )
    first, second, third = Encoder(samples=True).stream(read(folder))
    role, _, _, end, answer = unpack(first.prompt)
    assert unpack(first.prompt) == unpack(second.prompt)[:5]
    assert unpack(second.prompt)[5:9] == [2**31 - 1] * 4  # the server's own answer: max_out tokens
    word = unpack(second.prompt)[-3]
    assert unpack(second.prompt)[9:] == [end, role, word, end, answer]
    assert unpack(first.output) == [word, end]
    assert second.prompt == third.prompt and unpack(second.output) == [2**31 - 2]


def test_plain_texts_are_joined_and_an_empty_answer_is_one_token(tmp_path: Path) -> None:
    rows = [{"prompt": [["", 0], ["", 1]], "outputs": [2]}, {"prompt": [["", 1]], "outputs": [1]}]
    first, second = Encoder().stream(read(text_set(tmp_path, rows, ["a b", " b", ""])))
    a, b, again = unpack(first.prompt)
    assert b == again and a != b and unpack(second.output) == [b]
    assert first.output_tokens == 1 and unpack(first.output) != [b]


def test_ids_of_a_session_mean_nothing_in_another(tmp_path: Path) -> None:
    one = {"type": "n", "in": 130, "out": 64, "hash_runs": [0, 1, 5, 1], "t": 0.0}
    sub = {"type": "subagent", "t": 5.0, "requests": [{**one, "t": 1.0}]}
    path = write(
        tmp_path / "x.jsonl.gz",
        [{"id": "a", "requests": [one, sub]}, {"id": "b", "requests": [one]}],
    )
    requests = list(read(tmp_path))
    first, second, other = Encoder().stream(requests)
    assert find(tmp_path) == path and requests[1].at == 6.0 and requests[1].after == (0,)
    tokens = unpack(first.prompt)
    assert tokens[:128] == [0] * 64 + [5] * 64 and len(tokens) == 130
    assert (
        tokens[:128] == unpack(second.prompt)[:128] and tokens[128:] != unpack(second.prompt)[128:]
    )
    assert not set(tokens) & set(unpack(other.prompt))
    shrunk = [c.prompt_tokens for c in Encoder().stream(read(tmp_path, 16))]
    assert shrunk == [33, 33, 33] and first.output_tokens == 64


# ---- recordings ----------------------------------------------------------------------------------

PAGE = 4
STREAMS: list[tuple[str, list[int], list[int]]] = [  # salt, prompt, answer
    ("", [1, 2, 3, 4, 5, 6, 7, 8, 9], [10, 11, 12, 13]),
    ("", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [15]),
    ("", [1, 2, 3, 4, 5], []),
    ("x", [1, 2, 3, 4, 5, 6, 7, 8, 9], [10]),
]


def recording(folder: Path, steps: list[list[float]]) -> Path:
    """As a server writes it: chained hashes of full pages of prompt and answer."""
    rows: list[dict[str, Any]] = [{"radixserve_trace": 1, "page_size": PAGE, "model": "m"}]
    for number, (salt, prompt, output) in enumerate(STREAMS):
        tokens, chain, key = prompt + output, [], salt
        for at in range(0, len(tokens) - PAGE + 1, PAGE):
            digest = hashlib.sha256(f"{key}{tokens[at : at + PAGE]}".encode()).digest()
            key = str(int.from_bytes(digest[:6], "little"))
            chain.append(int(key))
        rows.append(
            {"at": number / 2, "tenant": salt, "ns": int(salt == "x"), "prompt": len(prompt),
             "output": len(output), "blocks": chain, "cached": 0}
        )  # fmt: skip
    head, *asked = rows
    done = [asked[k] for k in (1, 0, 3, 2)]  # a line stands where the request ended
    return write(folder / "own.jsonl.gz", [head, *done, *({"step": step} for step in steps)])


def test_a_recording_shares_what_its_requests_shared(tmp_path: Path) -> None:
    path = recording(tmp_path, [])
    requests = list(read(path))
    calls = list(Encoder().stream(requests))
    assert [r.at for r in requests] == [0.0, 0.5, 1.0, 1.5]
    assert [r.after for r in requests] == [(), (0,), (), ()]
    assert [r.session for r in requests] == ["0", "0", "2", "3"]
    assert [(c.prompt_tokens, c.output_tokens) for c in calls] == [(9, 4), (14, 1), (5, 1), (9, 1)]
    first, second, third, other = (unpack(c.prompt + c.output) for c in calls)
    assert first[:12] == second[:12] and second[12:] != first[12:]  # whole pages only
    assert first[:4] == third[:4] and first[4] != third[4]
    assert calls[3].namespace == Namespace(tenant="x", salt="1") and other[:4] != first[:4]


def test_a_recording_that_breaks_off_is_read_up_to_there(tmp_path: Path) -> None:
    whole = gzip.decompress(recording(tmp_path, []).read_bytes())
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(whole[:-10])
    assert [request.at for request in read(plain)] == [0.0, 0.5, 1.5]
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(whole)[:-8])
    assert [request.at for request in read(packed)] == [0.0, 0.5, 1.0, 1.5]


def test_a_cost_is_measured_by_the_steps_of_a_recording(tmp_path: Path) -> None:
    steps = [[p, d, 0.005 + 2e-5 * p + 3e-4 * d] for p, d in [(0, 1), (512, 0), (100, 7), (8, 3)]]
    cost = measured(recorded_steps(recording(tmp_path, steps)))
    assert (cost.step, cost.prefill, cost.decode) == pytest.approx((0.005, 2e-5, 3e-4))


def test_a_measured_cost_is_never_negative(tmp_path: Path) -> None:
    steps = [[p, d, 0.001 - 1e-7 * p] for p, d in [(0, 1), (10, 1), (20, 2), (10, 2), (30, 1)]]
    cost = measured(recorded_steps(recording(tmp_path, steps)))
    assert min(cost.step, cost.prefill, cost.decode) >= 0.0
    assert cost.seconds(10, 1) == pytest.approx(0.001, rel=0.01) and cost.prefill == 0.0


def test_few_steps_and_other_files_give_no_cost(tmp_path: Path) -> None:
    for steps in ([], [[1, 1, 1]], [[0, 4, 0.5]] * 9):
        with pytest.raises(Missing, match="few or all alike"):
            measured(recorded_steps(recording(tmp_path, steps)))
    with pytest.raises(Missing, match="only a recording"):
        recorded_steps(write(tmp_path / "other.jsonl.gz", [{"hash_ids": []}]))


@pytest.mark.parametrize("text", [b"{}", b"[1]", b"nothing", b"", b"\xff\xfe", b"\x1f\x8b\x08"])
def test_an_unknown_form_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "x.jsonl").write_bytes(text + b"\n")
    with pytest.raises(Missing, match=r"x\.jsonl: no known form"):
        read(tmp_path / "x.jsonl")


def test_what_is_not_there_or_not_clear_is_said(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="no such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(Missing, match="has no trace"):
        read(tmp_path)
    write(tmp_path / "b.jsonl.gz", [])
    write(tmp_path / "a.jsonl.gz", [])
    with pytest.raises(Missing, match=r"name one: .*a\.jsonl\.gz, .*b\.jsonl\.gz"):
        read(tmp_path)


def test_a_cut_file_is_named_with_its_line(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [1]}
    plain = tmp_path / "plain.jsonl"
    plain.write_text(json.dumps(row) + "\n" + json.dumps(row)[:9])
    with pytest.raises(Missing, match=r"plain\.jsonl, line 2"):
        list(read(plain))
    packed = write(tmp_path / "packed.jsonl.gz", [row | {"timestamp": k} for k in range(20_000)])
    whole = packed.read_bytes()
    packed.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Missing, match=r"packed\.jsonl\.gz, line \d+"):
        list(read(packed))
    assert gzip.decompress(whole)


def test_what_no_block_covers_is_the_requests_own() -> None:
    (only,) = Encoder().stream([blocks(0)])
    assert only.prompt == pack([0, 0, 0, 0, 2**31 - 1, 2**31 - 1])
    assert only.kept == only.prompt + pack([2**31 - 1])


@pytest.mark.parametrize(("after", "session"), [(1, "s"), (2, "s"), (0, "other")])
def test_ties_lead_back_inside_a_session(tmp_path: Path, after: int, session: str) -> None:
    rows = [{"prompt": [["", 0]]}, {"prompt": [["", 0]], "after": [after], "session": session}]
    with pytest.raises(Missing, match=f"request 1 comes after {after}, which is no earlier"):
        list(read(text_set(tmp_path, rows, ["a"])))
