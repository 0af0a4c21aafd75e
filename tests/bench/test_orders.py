"""The bench of orders at a small size: its stream, and the bound that it is there to show."""

from pathlib import Path

import pytest

from bench import orders


def test_cold_requests_wait_no_longer_than_first_come_and_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orders, "SECONDS", 20.0)
    requests = orders.stream(rate=40.0, cold_every=2.0)
    first_come = orders.waits(requests, "fcfs", 1.0)
    tight = orders.waits(requests, "lpm", 0.5)
    loose = orders.waits(requests, "lpm", 5.0)
    assert first_come["cold_requests"] == 9
    one_admission = 0.5  # seconds that a slot takes to come free, at most
    assert tight["cold_max_s"] <= first_come["cold_max_s"] + 0.5 + one_admission
    assert loose["cold_max_s"] > tight["cold_max_s"] + 1.0, "the bound is what holds them"
    assert loose["warm_p50_s"] < first_come["warm_p50_s"]


def test_without_the_recorded_sets_the_stream_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(orders, "SECONDS", 6.0)
    assert orders.main(["--data", str(tmp_path), "--results", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "left out" in text and text.count("| shortest-prefill |") == len(orders.BOUNDS)
    assert len((tmp_path / "orders.jsonl").read_text().splitlines()) == text.count("\n|") - 2
