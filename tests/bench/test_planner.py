"""The planner bench at a toy size: every figure is there, and the plans are those of its cases."""

import json

from bench import planner


def test_a_line_with_all_figures(monkeypatch, capsys):
    monkeypatch.setattr(planner, "CASES", [(3, 600, 512)])
    monkeypatch.setattr("sys.argv", ["planner", "--steps", "4"])
    planner.main()
    (name, figures), *others = json.loads(capsys.readouterr().out.splitlines()[-1]).items()
    assert name == "3 rows of 600, 512 shared" and not others
    assert set(figures) == {
        "steady_us", "steady_p99_us", "one_for_another_us", "one_for_another_p99_us"
    }  # fmt: skip
    assert all(figure > 0 for figure in figures.values())


def test_rows_share_the_chunks_they_should():
    case = planner.Case(3, 600, 512, 4)
    sizes = [len(group.slots) for group in case._planner._known.values()]
    assert sizes.count(3) == 2
    case.replace(1)
    sizes = [len(group.slots) for group in case._planner._known.values()]
    assert sizes.count(3) == 2, "the new request has the shared prefix too"
