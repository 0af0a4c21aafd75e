"""The block sizes that ship are whole and fit; entries that are wrong or undecided are named."""

import itertools

import pytest
import torch

from radixserve_kernels import tiles
from radixserve_kernels.tiles import CHIPS, attention_tiles, chip_of, table_of


def entry(**changes):
    form = {"block_m": 16, "num_warps": 4, "num_stages": 3}
    keys = dict.fromkeys(("chip", "bytes", "kv_bytes", "head_size", "group", "page_size"), "*")
    values = {"chunk": 64, "block_n": 16, "split_tokens": 8}
    forms = {"narrow": form, "wide": form | {"block_m": 64}, "tile": form | {"block_m": 128}}
    return {"kernel": "attention"} | keys | values | forms | changes


def asked(**changes):
    sizes = {"bytes": 2, "kv_bytes": 2, "head_size": 64, "group": 4, "page_size": 16}
    return {"chip": "sm_90"} | sizes | changes


def chunk(table, **changes):
    return tiles.most_specific(table, "attention", asked(**changes)).chunk


@pytest.mark.parametrize("chip", CHIPS)
def test_every_shape_that_the_kernels_take_has_tiles_with_one_step(chip):
    sizes = itertools.product((2, 4), (8, 64, 80, 128, 256), (1, 16), (1, 16, 256), (1, None))
    for itemsize, head_size, group, page_size, kv_itemsize in sizes:
        found = attention_tiles(chip, itemsize, head_size, group, page_size, kv_itemsize)
        forms = (found.narrow, found.wide, found.tile)
        assert {form.block_n for form in forms} == {found.tile.block_n}
        assert all(group <= form.block_m for form in forms)
        assert found.narrow.block_m <= min(found.wide.block_m, found.tile.block_m)
        assert found.chunk % found.tile.block_n == 0


def test_the_interpreter_has_small_tiles_of_its_own():
    small, large = (attention_tiles(chip, 2, 128, 4, 16) for chip in ("interpreter", "sm_90"))
    assert (small.chunk, small.tile.block_n) == (32, 16)
    assert large.chunk > small.chunk and large.split_tokens > small.split_tokens


def test_no_tiles_for_doubles():
    with pytest.raises(ValueError, match=r"no entry of attention for .*'bytes': 8"):
        attention_tiles("sm_90", 8, 64, 4, 16)


def test_the_most_specific_entry_counts_whatever_the_order():
    entries = [
        entry(chunk=16),
        entry(chunk=32, chip="sm_90"),
        entry(chunk=48, chip="sm_90", head_size=128),
        entry(chunk=64, chip="interpreter"),
    ]
    for order in itertools.permutations(entries):
        table = table_of(order)
        assert chunk(table, chip="sm_80", head_size=128) == 16
        assert chunk(table) == 32
        assert chunk(table, head_size=128) == 48
        assert chunk(table, chip="interpreter", head_size=128) == 64


def test_any_chip_is_any_gpu_and_not_the_interpreter():
    with pytest.raises(ValueError, match="no entry"):
        chunk(table_of([entry()]), chip="interpreter")


def test_a_form_may_have_other_stages_for_windows():
    narrow = entry()["narrow"] | {"window_stages": 1}
    found = tiles.most_specific(table_of([entry(narrow=narrow)]), "attention", asked())
    forms = (found.narrow, found.wide, found.tile)
    stages = [(form.stages(window=False), form.stages(window=True)) for form in forms]
    assert stages == [(3, 1), (3, 3), (3, 3)]


def test_ties_are_refused_until_an_entry_settles_them():
    tied = [entry(chip="sm_90"), entry(head_size=128)]
    with pytest.raises(ValueError, match=r"attention: \('sm_90'.* both fit \('sm_90'.*128"):
        table_of(tied)
    both = entry(chip="sm_90", head_size=128, chunk=16)
    assert chunk(table_of([*tied, both]), head_size=128) == 16
    table_of([entry(chip="sm_90"), entry(chip="sm_80")])
    table_of([entry(chip="interpreter"), entry(head_size=128)])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"kernel": "convolution"}, "kernel must be one of attention, matmul"),
        ({"chip": "sm_75"}, 'chip must be "\\*" or one of sm_80'),
        ({"bytes": "2"}, "bytes must be a positive whole number"),
        ({"group": None}, "group must be a positive whole number"),
        ({"page_size": True}, "page_size must be a positive whole number"),
        ({"block_n": 24}, "block_n must be a power of two, at least 16"),
        ({"chunk": 40}, "chunk must be a multiple of block_n, 16"),
        ({"split_tokens": 0}, "split_tokens must be a positive whole number"),
        ({"blocks": 1}, "an entry of attention must have exactly block_n, chunk"),
        ({"wide": {"block_m": 64}}, "wide must have exactly block_m, num_stages, num_warps"),
        ({"tile": 3}, "tile must have exactly"),
        (
            {"narrow": {"block_m": 16, "num_warps": 4, "num_stages": 3, "window_stages": 0}},
            "window_stages of narrow must be a positive whole number",
        ),
        (
            {"narrow": {"block_m": 8, "num_warps": 4, "num_stages": 3}},
            "block_m of narrow must be a power of two, at least 16",
        ),
        (
            {"narrow": {"block_m": 16, "num_warps": 3, "num_stages": 3}},
            "num_warps of narrow must be a power of two",
        ),
    ],
)
def test_a_bad_entry_is_named(wrong, sentence):
    with pytest.raises(ValueError, match=f'tuned.json: {sentence}.*: {{"kernel": ') as caught:
        table_of([entry(bytes=4), entry(**wrong)])
    assert '"bytes": 4' not in str(caught.value)


def product(**changes):
    form = {"block_n": 32, "num_warps": 4, "num_stages": 3}
    forms = [form | {"block_m": rows} for rows in (16, 64)]
    return {"kernel": "matmul", "chip": "*", "bytes": 2, "block_k": 64, "forms": forms} | changes


def test_forms_of_matmul_have_one_step():
    table = table_of([product(), product(chip="sm_90", block_k=128)])
    for chip, block_k in {"sm_80": 64, "sm_90": 128}.items():
        found = tiles.most_specific(table, "matmul", {"chip": chip, "bytes": 2})
        assert [form.block_m for form in found] == [16, 64]
        assert {form.block_k for form in found} == {block_k}
    with pytest.raises(ValueError, match="no entry of matmul"):
        tiles.matmul_tiles("sm_90", 8)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"bytes": 0}, "bytes must be a positive"),
        ({"block_k": 48}, "block_k must be a power of two, at least 16"),
        ({"block_m": 16}, "an entry of matmul must have exactly block_k, forms"),
        ({"forms": 3}, "forms must be a list"),
        ({"forms": []}, "block_m of forms must rise, to at least 64"),
        ({"forms": product()["forms"][:1]}, "block_m of forms must rise"),
        ({"forms": product()["forms"][::-1]}, "block_m of forms must rise"),
        ({"forms": [{"block_m": 64}]}, "a form must have exactly block_m, block_n, num_stages"),
        ({"forms": [product()["forms"][1] | {"block_n": 8}]}, "block_n of a form must be a power"),
    ],
)
def test_a_bad_entry_of_matmul_is_named(wrong, sentence):
    with pytest.raises(ValueError, match=f"tuned.json: {sentence}"):
        table_of([product(**wrong)])


def test_an_entry_that_stands_twice_is_named():
    with pytest.raises(ValueError, match="stands there twice"):
        table_of([entry(), entry(chunk=128)])


@pytest.mark.parametrize(
    ("capability", "chip"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_80"),
        ((8, 9), "sm_80"),
        ((9, 0), "sm_90"),
        ((10, 0), "sm_100"),
        ((10, 3), "sm_100"),
        ((12, 0), "sm_80"),
    ],
    ids=str,
)
def test_nvidia_chips(capability, chip, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert chip_of.__wrapped__(torch.device("cuda", 0)) == chip


@pytest.mark.parametrize("arch", ["gfx942:sramecc+:xnack-", "gfx950"])
def test_amd_chips(arch, monkeypatch):
    properties = type("Properties", (), {"gcnArchName": arch})
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert chip_of.__wrapped__(torch.device("cuda", 0)) == "gfx942"


def test_other_devices(monkeypatch):
    assert chip_of(torch.device("cpu")) == "interpreter"
    with pytest.raises(ValueError, match="type meta"):
        chip_of(torch.device("meta"))
    with pytest.raises(ValueError, match="gfx90a"):
        tiles._amd_chip("gfx90a")
    with pytest.raises(ValueError, match=r"capability 7\.5"):
        tiles._nvidia_chip(7, 5)


@pytest.mark.parametrize("chip", tiles.CHIPS)
@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize(("itemsize", "kv_itemsize"), [(2, 2), (2, 1), (4, 4), (4, 1)])
def test_uniform_tiles_are_of_one_kind_and_keep_the_order(chip, head_size, itemsize, kv_itemsize):
    given = tiles.attention_tiles(chip, itemsize, head_size, 4, 16, kv_itemsize)
    uniform = given.uniform()
    forms = (uniform.narrow, uniform.wide, uniform.tile)
    assert len({form.block_m >= tiles.UNIFORM_M for form in forms}) == 1
    assert uniform.narrow == uniform.wide
    assert {form.block_n for form in forms} == {given.wide.block_n}
    assert (uniform.chunk, uniform.split_tokens) == (given.chunk, given.split_tokens)
