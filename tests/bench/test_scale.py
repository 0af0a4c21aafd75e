"""The scale bench at toy sizes: every figure is there, and the work is what its name says."""

import importlib
import io
import json
import random
import sys
from collections import defaultdict

import pytest

from bench import scale
from bench.indexes import shape
from bench.indexes.absent import stand_in
from bench.indexes.index import Bench, Samples
from bench.indexes.ours import Ours, make
from bench.indexes.steps import Steps
from radixserve.cache import check
from radixserve.scheduler.order import ORDERS

TOY = ["--tokens", "4000,10000", "--page-one", "4000", "--chain", "40", "--rows", "3"]
TOY += ["--waiting", "0,5", "--count", "6", "--rounds", "2"]


def test_a_group_is_as_large_as_it_says() -> None:
    paths = [list(path) for path in shape.paths(3)]
    assert len(paths) == shape.GROUP_LEAVES
    assert {len(path) for path in paths} == {shape.PATH}
    assert len({tuple(p[:n]) for p in paths for n in range(1, shape.PATH + 1)}) == (
        shape.GROUP_TOKENS
    )
    assert paths[0][: shape.PREFIX] == list(shape.prefix(3, 0))


def test_a_chain_forks_at_every_page() -> None:
    bench = Bench(make, 4)
    bench.build_chain(30)
    assert isinstance(bench.index, Ours)
    check(bench.index.cache)
    assert bench.index.cache.tree.num_nodes == 30 + 29  # of the long prompt, and the forks


def test_the_cache_is_full_and_keeps_its_laws_through_all_work() -> None:
    bench = Bench(make, 16)
    built = bench.build(3)
    assert isinstance(bench.index, Ours)
    cache = bench.index.cache
    assert built["tokens"] == 3 * shape.GROUP_TOKENS == cache.tree.num_pages * 16
    assert len(cache.pool) == 0
    samples: Samples = defaultdict(list)
    for work in ("hit", "miss", "page", "pages"):
        for operation, times in bench.measure(work, 4, 60.0).items():
            samples[operation] += times
    check(cache)
    assert not cache.leases
    assert cache.evicted_pages >= 4 * (128 + 1)
    assert set(samples) == {
        *("prepare", "hit", "release", "miss"),
        *("evict 1", "commit 1", "evict 128", "commit 128"),
    }
    assert all(len(times) == 4 and min(times) > 0 for times in samples.values())


def test_time_is_bounded() -> None:
    bench = Bench(make, 16)
    bench.build(1)
    assert len(bench.measure("hit", 1000, 0.0)["hit"]) == 1


@pytest.mark.parametrize("order", list(ORDERS))
def test_steps_go_on_past_the_end_of_an_answer(order: str) -> None:
    steps = Steps(order, 4)
    steps.build(2)
    assert len(steps.measure("step", 70, 60.0)["step"]) == 70
    assert len(steps.measure("admission", 70, 60.0, waiting=9)["admission"]) == 70
    assert len(steps.measure("submit", 5, 60.0, waiting=3)["submit"]) == 5


def test_toy_run_prints_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert scale.main([*TOY, "--rivals", sys.executable]) == 0  # an environment without rivals
    *report, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert result["failed"] == {}
    for row in result["rows"]:
        figures = [
            row[name] for name in ("p50_us", "p99_us", "max_us", "n", "bytes") if name in row
        ]
        assert figures and all(figure > 0 for figure in figures), row
    counts = defaultdict(set)
    for row in result["rows"]:
        counts[row["section"]].add((row["operation"], row["engine"], row["at"]))
    # 8 operations and the memory at three columns; 2 ways along the chain, found and released;
    # a step and an admission at two sizes; 2 kinds of work at 2 lengths of the queue per order.
    assert {name: len(places) for name, places in counts.items()} == {
        "Index": 27,
        "Chain": 4,
        "Scheduler": 4,
        "Queue": 4 * len(ORDERS),
    }
    lines = [line for line in report if line.startswith("|")]
    assert len(lines) == 2 * 4 + 11 + 4 + 2 + 4
    assert all(line.count("|") in (4, 5, 6, 3 + len(ORDERS)) for line in lines)


def test_a_profile_names_the_functions_that_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert scale.main([*TOY, "--profile", "hit"]) == 0
    assert "acquire" in capsys.readouterr().out


def test_a_rival_that_dies_is_reported_and_the_rest_is_measured() -> None:
    failed: dict[str, str] = {}
    build = {"do": "build", "groups": 1}
    work = [{"work": "hit"}]
    cases = [
        scale.Case("Index", engine, "x", sys.executable, [engine, "16"], build, work)
        for engine in ("vllm", "ours")
    ]
    try:
        standing = scale.start(cases, failed, io.StringIO())
    finally:
        for case in cases:
            assert case.child is not None
            case.child.close()
    assert [case.engine for case in standing] == ["ours"]
    assert list(failed) == ["vllm, Index, x"] and "vllm" in failed["vllm, Index, x"]


def test_a_stand_in_passes_for_what_an_import_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    stand_in(["no_such_engine"])
    module = importlib.import_module("no_such_engine.kernels")

    @module.jit
    def decorated() -> int:
        return random.Random(0).randrange(9) + 1

    class Sub(module.Base[int]):  # type: ignore[misc]
        kind = module.Kind.FIRST

    assert decorated() > 0 and Sub.kind == "FIRST"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("another_engine")
