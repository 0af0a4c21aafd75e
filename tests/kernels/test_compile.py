"""The ahead-of-time gate: the core kernels pass it for sm_90, and each part of it can say no."""

import argparse
import itertools
import os
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compile_kernels import command, cover, forms, gate, kept, reports
from radixserve_kernels import interpret, tiles

SCRIPT = Path(__file__).parents[2] / "scripts" / "compile-kernels"
LARGE = ("wide", "tile", "matmul-64", "matmul-128")  # forms with tiles of 64 rows or more
REPORT = reports.Report(80, 0, 232448, 4, 6, "mma.sync")


def launch(module="radixserve_kernels.first", **changes):
    kernel = SimpleNamespace(
        fn=SimpleNamespace(__module__=module), arg_names=["X", "TABLE", "eps", "n", "BLOCK"]
    )
    fields = {"constants": {"BLOCK": 16}, "options": {"num_warps": 4}, "element": "bf16"}
    return forms.Launch(kernel, **fields | {"block_m": 16} | changes)


def test_core_and_changed_kernels_compile_for_sm_90_within_limits():
    """The core always, of the rest what the record does not have: half a minute on two cores.

    With a record that knows no variant any more it takes six times as long, and the timeout says
    that `scripts/compile-kernels --changed --record` should have run.
    """
    environment = {name: v for name, v in os.environ.items() if name != interpret.SWITCH}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--target", "sm_90", "--changed"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()[2:-1]
    for variant in forms.core():
        found = [line for line in lines if line.partition(" sm_90")[0].strip() == str(variant)]
        assert len(found) == 1, variant
        assert ("wgmma" in found[0]) == (variant.form in LARGE)
        assert ("mma.sync" in found[0]) == (variant.form in ("narrow", "matmul-16"))


def test_gate_names_each_fault():
    assert reports.faults(REPORT, launch(), "sm_90") == []
    for fault, change in {
        "spills 8 bytes": {"spilled": 8},
        "more than 232448 bytes of shared memory": {"shared": 232449},
        "no wide load": {"wide": 0},
        "not mma.sync alone": {"matrix": "none"},
    }.items():
        assert reports.faults(replace(REPORT, **change), launch(), "sm_90") == [fault]
    narrow = replace(REPORT, wide=0)
    assert reports.faults(narrow, launch(wide=False), "sm_90") == []
    assert reports.faults(REPORT, launch(), "sm_80") == ["more than 166912 bytes of shared memory"]


@pytest.mark.parametrize(
    ("target", "small", "large"),
    [
        ("sm_80", "mma.sync", "mma.sync"),
        ("sm_90", "mma.sync", "wgmma"),
        ("sm_100", "mma.sync", "tcgen05.mma"),
        ("gfx942", "mfma", "mfma"),
    ],
)
def test_matrix_instruction_is_the_chips_own_for_large_tiles(target, small, large):
    report = replace(REPORT, shared=0)
    for block_m, matrix in [(16, small), (32, small), (64, large), (128, large)]:
        product = launch(block_m=block_m)
        assert reports.faults(replace(report, matrix=matrix), product, target) == []
        for wrong in ("none", f"{matrix}+other"):
            found = reports.faults(replace(report, matrix=wrong), product, target)
            assert found == [f"not {matrix} alone"]
    for free in (launch(block_m=None), launch(block_m=64, element="fp32")):
        assert reports.faults(replace(report, matrix="none"), free, target) == []


def test_limits_are_known_for_every_target_and_chip():
    assert set(command.TARGETS) == set(reports.SHARED_LIMIT)
    assert {*command.TARGETS, "interpreter"} == set(tiles.CHIPS)


def test_kinds_of_matrix_instructions_are_all_seen():
    ptx = "wgmma.mma_async.sync.aligned.m64n64k16\n mma.sync.aligned.m16n8k16\n wgmma.fence"
    assert reports.matrix_names(SimpleNamespace(asm={"ptx": ptx})) == {"wgmma", "mma.sync"}
    ptx = "tcgen05.mma.cta_group::1.kind::f16"
    assert reports.matrix_names(SimpleNamespace(asm={"ptx": ptx})) == {"tcgen05.mma"}


def test_what_agprs_hold_is_not_spilled():
    numbers = {"vgpr_count": 309, "vgpr_spill_count": 2, "private_segment_fixed_size": 0}
    for bytes_ in (0, 12):
        numbers["private_segment_fixed_size"] = bytes_
        text = "".join(f"    .{name}: {number}\n" for name, number in numbers.items())
        compiled = SimpleNamespace(asm={"amdgcn": text}, metadata=SimpleNamespace(shared=64))
        assert reports.amd_report(compiled) == reports.Report(309, bytes_, 64, 0, 0, "none")


def test_windows_have_the_stages_of_their_own(monkeypatch):
    tuned = tiles.attention_tiles("sm_90", 2, 128, 4, 16)
    narrow = replace(tuned.narrow, num_stages=3, window_stages=1)
    monkeypatch.setattr(forms, "attention_tiles", lambda *_: replace(tuned, narrow=narrow))
    stages = {}
    for option in forms.OPTIONS:
        made = forms.FORMS["narrow"].launch(forms.Variant("narrow", option=option), "sm_90")
        stages[option] = made.constants["STAGES"]
    assert stages == {"none": 3, "window": 1, "softcap": 3}


def test_signature_has_a_type_for_every_argument():
    assert launch(types={"X": "*fp8e4nv"}).signature() == {
        "X": "*fp8e4nv",
        "TABLE": "*i32",
        "eps": "fp32",
        "n": "i32",
        "BLOCK": "constexpr",
    }
    assert launch(element="fp16").signature()["X"] == "*fp16"


def test_every_form_launches_all_its_variants_with_known_arguments():
    variants = list(forms.everything())
    assert len(variants) == len(set(variants)) == len({str(v) for v in variants})
    assert {variant.form for variant in variants} == set(forms.FORMS)
    for variant in variants:
        made = forms.FORMS[variant.form].launch(variant, "sm_90")
        assert made.constants.keys() <= set(made.kernel.arg_names)
        form = forms.FORMS[variant.form]
        assert made.element == (variant.dtype if "dtype" in form.dimensions else "fp32")


def test_every_pair_of_values_is_in_a_variant_of_every_form():
    variants = list(forms.everything())
    for name, form in forms.FORMS.items():
        for one, other in itertools.combinations(form.dimensions, 2):
            met = {(getattr(v, one), getattr(v, other)) for v in variants if v.form == name}
            wanted = set(itertools.product(forms.VALUES[one], forms.VALUES[other]))
            assert met >= wanted - {forms.POINTLESS}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=2, max_size=5))
def test_pairwise_has_every_pair_and_few_rows(sizes):
    dimensions = {f"d{i}": [f"{i}{value}" for value in range(n)] for i, n in enumerate(sizes)}
    rows = cover.pairwise(dimensions)
    met = {frozenset(two) for row in rows for two in itertools.combinations(row.items(), 2)}
    assert met == set(cover.all_pairs(dimensions))
    assert all(list(row) == list(dimensions) for row in rows)
    largest, second = sorted(sizes, reverse=True)[:2]
    assert largest * second <= len(rows) <= 2 * largest * second
    assert rows == cover.pairwise(dimensions)


def test_all_values_of_attention_need_no_more_rows_than_their_largest_pair():
    assert len(cover.pairwise(forms.VALUES)) == 45  # 9 groups by 5 head sizes


@pytest.fixture
def sources(tmp_path):
    folder = tmp_path / "radixserve_kernels"
    folder.mkdir()
    texts = {
        "first": "import triton\nfrom radixserve_kernels import second\nimport os\n",
        "second": "import triton.language as tl\nfrom radixserve_kernels.sizes import padded\n",
        "sizes": "import radixserve_kernels.third\nMOST = 16\n",
        "third": "from triton import jit\nimport radixserve_kernels.first\n",
        "stranger": "import triton\nfrom radixserve_kernels import first\n",
    }
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return tmp_path


def test_digest_is_of_the_sources_that_the_kernel_is_made_of(sources):
    def digest():
        return kept.digest_of(launch(), "sm_90", "3.9.0", sources)

    found = kept.device_sources("radixserve_kernels.first", sources)
    assert [path.stem for path in found] == ["first", "second", "third"]
    before = digest()
    for name, counts in {"first": 1, "second": 1, "third": 1, "sizes": 0, "stranger": 0}.items():
        path = sources / "radixserve_kernels" / f"{name}.py"
        text = path.read_text()
        path.write_text(f"{text}# another line\n")
        assert (digest() != before) == bool(counts), name
        path.write_text(text)
        assert digest() == before


def test_digest_is_of_constants_options_types_target_and_release(sources):
    asked = [
        (launch(), "sm_90", "3.9.0"),
        (launch(), "sm_80", "3.9.0"),
        (launch(), "sm_90", "3.6.0"),
        (launch(constants={"BLOCK": 32}), "sm_90", "3.9.0"),
        (launch(options={"num_warps": 8}), "sm_90", "3.9.0"),
        (launch(element="fp16"), "sm_90", "3.9.0"),
        (launch(types={"n": "i64"}), "sm_90", "3.9.0"),
        (launch("radixserve_kernels.third"), "sm_90", "3.9.0"),
    ]
    assert len({kept.digest_of(*each, sources) for each in asked}) == len(asked) - 1
    same = launch(constants={"BLOCK": 16})
    assert kept.digest_of(same, "sm_90", "3.9.0", sources) == kept.digest_of(*asked[0], sources)


def test_the_record_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "record.jsonl"
    record = kept.Record(path)
    for variant, target, release in itertools.product("ab", ("sm_80", "sm_90"), ("3.6", "3.9")):
        record.add(variant, target, release, variant + target + release, REPORT)
    record.add("a", "sm_90", "3.9", "newer", replace(REPORT, spilled=8))
    record.drop_others("sm_80", "3.6", {"a"})
    record.write()
    assert len(path.read_text().splitlines()) == 7
    again = kept.Record(path)
    assert again.report("newer") == replace(REPORT, spilled=8)
    assert again.report("bsm_803.9") == REPORT
    assert again.report("bsm_803.6") is None and again.report("asm_903.9") is None
    assert again.knows("sm_80", "3.6") and not again.knows("sm_90", "3.8")
    text = path.read_text()
    again.write()
    assert path.read_text() == text


def asked(**changes):
    names = {"target": ["sm_90"], "all": False, "changed": False, "record": True, "jobs": 1}
    return argparse.Namespace(**names | changes)


def recorded(path, but=(), release=gate.RELEASE):
    """A record of all variants for sm_90, with other digests for those in `but`."""
    record = kept.Record(path)
    for variant in forms.everything():
        digest = "old" if variant in but else gate.case_of(variant, "sm_90").digest
        record.add(str(variant), "sm_90", release, digest, REPORT)
    record.write()
    return kept.Record(path)


def test_changed_asks_for_the_core_and_what_the_record_does_not_have(tmp_path):
    core, everything = list(forms.core()), list(forms.everything())
    changed = everything[-1]
    record = recorded(tmp_path / "record.jsonl", but=[changed])
    found = list(gate.cases(asked(changed=True), record))
    assert [case.variant for case in found] == everything
    assert [case.variant for case in found if case.known is None] == [*core, changed]
    found = gate.cases(asked(all=True), record)
    assert all(case.known is None for case in found)
    assert [case.variant for case in gate.cases(asked(), record)] == core


def test_what_was_never_recorded_is_not_compared(tmp_path):
    record = recorded(tmp_path / "record.jsonl")
    found = gate.cases(asked(changed=True, target=["sm_80"]), record)
    assert [case.variant for case in found] == list(forms.core())
    record = recorded(tmp_path / "other.jsonl", release="3.5.0")
    assert [case.variant for case in gate.cases(asked(changed=True), record)] == list(forms.core())


@pytest.fixture
def made(monkeypatch, tmp_path):
    """The gate with an empty record and no compiler: reports are those of this dictionary."""
    results = {}
    monkeypatch.setattr(kept, "RECORD", tmp_path / "record.jsonl")
    monkeypatch.setattr(kept, "BUILD", tmp_path / "build")

    def begin(case, pool):
        done = Future()
        result = case.known or results.get(str(case.variant), REPORT)
        if isinstance(result, Exception):
            done.set_exception(result)
        else:
            matrix = reports.expected_matrix(case.launch, case.target) or "none"
            done.set_result(replace(result, matrix=matrix))
        return done

    monkeypatch.setattr(gate, "begin", begin)
    return results


def test_a_run_prints_in_order_sums_up_and_records(made, capsys):
    made["silu bf16 d128 h32/8 page16"] = replace(REPORT, registers=99)
    assert gate.run(asked()) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [f"{variant}" for variant in forms.core()]
    assert [line.startswith(name) for line, name in zip(lines[2:], names, strict=False)]
    count = len(names)
    start = f"triton {gate.RELEASE}, sm_90: {count} variants, 0 spill, at most 99 "
    assert lines[-1].startswith(start)
    assert "4 mma.sync" in lines[-1] and "6 wgmma" in lines[-1]
    assert len(kept.RECORD.read_text().splitlines()) == count


def test_a_run_fails_on_a_spill_and_on_what_does_not_compile(made, capsys):
    made["rope bf16 d128 h32/8 page16"] = replace(REPORT, spilled=4)
    assert gate.run(asked(all=True)) == 1
    assert "spills 4 bytes" in capsys.readouterr().out
    assert gate.run(asked(changed=True)) == 1, "what is recorded is judged too"
    made.clear()
    assert gate.run(asked()) == 0
    made["rope bf16 d128 h32/8 page16"] = RuntimeError("no such type\nmore")
    assert gate.run(asked()) == 1
    out = capsys.readouterr().out
    assert "does not compile: RuntimeError: no such type\n" in out


def test_a_report_that_is_kept_is_not_made_again(monkeypatch, tmp_path):
    monkeypatch.setattr(kept, "BUILD", tmp_path)
    case = gate.case_of(next(forms.core()), "sm_90")
    asked_for = []
    pool = SimpleNamespace(submit=lambda *arguments: asked_for.append(arguments))
    gate.begin(case, pool)
    assert asked_for == [(gate.make_report, case.variant, "sm_90")]
    kept.keep(case.digest, REPORT)
    assert gate.begin(case, pool).result() == REPORT
    assert len(asked_for) == 1


def test_wrong_use_is_refused(monkeypatch, capsys):
    def refusal(*arguments):
        with pytest.raises(SystemExit, match="2"):
            command.arguments(list(arguments))
        return capsys.readouterr().err

    monkeypatch.delenv(interpret.SWITCH, raising=False)
    assert "unknown target: sm_1" in refusal("--target", "sm_90,sm_1")
    assert "--jobs must be at least 1" in refusal("--jobs", "0")
    assert command.arguments(["--target", "sm_90,gfx942"]).target == ["sm_90", "gfx942"]
    monkeypatch.setenv(interpret.SWITCH, "1")
    assert "unset TRITON_INTERPRET" in refusal()


def test_another_triton_is_installed_once_and_comes_first(monkeypatch, tmp_path):
    installed, begun = [], []
    monkeypatch.setattr(command, "BUILD", tmp_path)
    monkeypatch.setattr(
        command, "install", lambda what, folder: (installed.append(what), folder.mkdir())
    )
    monkeypatch.setattr(os, "execve", lambda *arguments: begun.append(arguments))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    for _ in range(2):
        command.choose_release("3.5.0")
    assert installed == ["triton==3.5.0"]
    folder = tmp_path / "triton-3.5.0"
    assert all(each[2]["PYTHONPATH"] == f"{folder}{os.pathsep}elsewhere" for each in begun)
    assert len(begun) == 2 and begun[0][1][1:] == sys.argv
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with pytest.raises(SystemExit, match=r"does not have triton 3\.5\.0"):
        command.choose_release("3.5.0")
    command.choose_release(None)
    assert len(begun) == 2


def test_a_failed_install_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(
        subprocess, "run", lambda *command, **options: SimpleNamespace(returncode=1)
    )
    with pytest.raises(SystemExit, match="could not install triton==0"):
        command.install("triton==0", tmp_path / "triton-0")
    assert list(tmp_path.iterdir()) == []


def test_a_tile_too_large_spills_and_the_gate_sees_it():
    code = (
        "from dataclasses import replace\n"
        "from compile_kernels import forms, reports\n"
        "launch = forms.FORMS['tile'].launch(forms.Variant('tile', head_size=64), 'sm_90')\n"
        "large = {'BLOCK_M': 256, 'BLOCK_N': 16}\n"
        "options = launch.options | {'num_warps': 4}\n"
        "constants = launch.constants | large\n"
        "launch = replace(launch, constants=constants, options=options, block_m=256)\n"
        "print(reports.faults(reports.report_of(launch, 'sm_90'), launch, 'sm_90'))\n"
    )
    environment = {name: v for name, v in os.environ.items() if name != interpret.SWITCH}
    path = os.pathsep.join([str(SCRIPT.parent), str(SCRIPT.parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.startswith("['spills "), done.stdout + done.stderr
