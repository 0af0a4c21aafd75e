"""paged_attention against the reference in float64, then bit for bit against itself."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from radixserve_kernels.attention_options import Options
from radixserve_kernels.attention_plan import ITEM_HEAD
from radixserve_kernels.paged_attention import paged_attention
from tests.kernels.paged_rows import TOLERANCE, caches_with_far_page, paged_rows, worst_error

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
PRIME = 37
# the interpreter's tiles have chunks of 32 tokens, and split rows of up to 16 new ones
LONG = 131

# what triton 3.6's interpreter does with loop bounds under numpy 2.3
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0")


def assert_close(rows, requests, dtype, factor=1, **kwargs):
    outputs = rows.attend(requests, **kwargs)
    assert all(out.dtype == dtype for out in outputs)
    expected = rows.expected(requests, options=kwargs.get("options"))
    assert worst_error(outputs, expected) < TOLERANCE[dtype] * factor


@pytest.mark.parametrize(
    ("heads", "dtype"),
    [*itertools.product([(2, 2), (6, 2), (8, 2), (8, 1), (16, 1)], DTYPES[:1]),
     *itertools.product([(6, 2)], DTYPES[1:])],
    ids=str,
)  # fmt: skip
def test_mixed_batch_matches_reference(heads, dtype, device):
    page = 8
    lengths = [1, page - 1, page, page + 1, PRIME]
    rows = paged_rows(lengths, heads, 64, page, dtype, device)
    news = [1, 1, page, 3, PRIME - 2]
    requests = [(row, news[row], lengths[row]) for row in (4, 0, 3, 1, 2)]
    assert_close(rows, requests, dtype)
    assert_close(rows, requests, dtype, max_parts=0)
    assert_close(rows, [(row, 1, lengths[row]) for row in range(5)], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_size", [16, 64, 80, 96, 128, 256])
def test_head_sizes(head_size, dtype, device):
    rows = paged_rows([PRIME, 70], (4, 2), head_size, 16, dtype, device)
    assert_close(rows, [(0, 20, PRIME), (1, 5, 70)], dtype)
    assert_close(rows, [(0, 1, PRIME), (1, 1, 70)], dtype)


@pytest.mark.parametrize("page_size", [1, 2, 16, 32, 64, 256])
def test_page_sizes(page_size, device):
    rows = paged_rows([PRIME, 1, LONG], (4, 2), 64, page_size, torch.float32, device)
    assert_close(rows, [(2, 1, LONG), (0, 20, PRIME), (1, 1, 1)], torch.float32)


def test_group_that_does_not_divide_the_tile_over_many_tiles(device):
    rows = paged_rows([LONG, 61], (6, 2), 64, 16, torch.float32, device)
    assert_close(rows, [(0, LONG, LONG), (1, 31, 61)], torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [Options(0.2, softcap=3.0), Options(0.125, window=5), Options(0.125, window=40),
     Options(0.2, softcap=2.0, window=33)],
    ids=str,
)  # fmt: skip
def test_softcap_and_window(options, dtype, device):
    rows = paged_rows([LONG, 7, PRIME], (4, 2), 64, 8, dtype, device)
    for requests in ([(0, 60, LONG), (2, 20, PRIME)], [(0, 9, LONG), (1, 1, 7), (2, 1, PRIME)]):
        assert_close(rows, requests, dtype, 2, options=options)


@pytest.mark.parametrize(
    ("head_size", "dtype"),
    [*zip([64, 80, 96, 128, 256], [*DTYPES, *DTYPES[:2]], strict=True)],
    ids=str,
)
def test_fp8_cache(head_size, dtype, device):
    rows = paged_rows([LONG, 9], (4, 2), head_size, 16, dtype, device).quantised()
    assert_close(rows, [(0, 20, 70), (1, 2, 9)], dtype)
    assert_close(rows, [(0, 3, LONG), (1, 1, 9)], dtype, options=Options(0.1, window=70))
    cold = rows.attend([(0, 20, 70)])[0]
    assert torch.equal(rows.attend([(0, 7, 70), (1, 1, 9)])[0], cold[-7:])


def test_row_without_new_tokens_takes_no_part(device):
    rows = paged_rows([9, 20], (4, 2), 64, 8, torch.float32, device)
    out = rows.attend([(0, 0, 9), (1, 4, 20), (0, 0, 9)])
    assert torch.equal(out[1], rows.attend([(1, 4, 20)])[0])


def test_strided_queries_and_heads_first_pages(device):
    rows = paged_rows([PRIME], (4, 2), 64, 8, torch.float32, device)
    request = [(0, 7, PRIME)]
    plain = rows.attend(request)[0]
    fused = torch.randn(7, 4 + 2 + 2, 64, device=device)
    fused[:, :4] = rows.queries[0][-7:]
    k_cache, v_cache = (
        cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (rows.k_cache, rows.v_cache)
    )
    given = arguments(rows, request) | dict(q=fused[:, :4], k_cache=k_cache, v_cache=v_cache)
    out = paged_attention(**given)
    assert out.is_contiguous() and torch.equal(out, plain)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [(torch.float32, Options(0.125, 2.0, 45)), (torch.bfloat16, None)],
    ids=str,
)
def test_hot_is_cold(dtype, options, device):
    """Wherever the prompt is split, and whichever kernel computes its end: the same bits."""
    length = 70
    rows = paged_rows([length], (4, 2), 64, 16, dtype, device)
    cold = rows.attend([(0, length, length)], options=options)[0]
    for room in (0, 10**6):
        for cached in (1, 32, 33, 54, 63, 69):
            request = [(0, length - cached, length)]
            hot = rows.attend(request, options=options, max_parts=room)[0]
            assert torch.equal(hot, cold[cached:]), f"cached {cached}, room {room}"
        for end in (1, 32, 33, 65):
            decoded = rows.attend([(0, 1, end)], options=options, max_parts=room)[0]
            assert torch.equal(decoded, cold[end - 1 : end]), f"decode at {end}, room {room}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alone_is_in_a_batch(dtype, device):
    requests = [(0, 1, PRIME), (1, 40, 40), (2, 5, 90), (3, 1, 1), (2, 1, 64)]
    rows = paged_rows([PRIME, 40, 90, 1], (6, 2), 64, 16, dtype, device)
    alone = [rows.attend([request])[0] for request in requests]
    for order in ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4), (3, 0, 4)):
        together = rows.attend([requests[i] for i in order])
        for i, out in zip(order, together, strict=True):
            assert torch.equal(out, alone[i]), f"request {i} in {order}"


@pytest.mark.parametrize(
    ("new", "dtype", "options"),
    [
        (1, torch.float32, None),
        (3, torch.float32, Options(0.125, window=50)),
        (1, torch.bfloat16, Options(0.125, window=50)),
        (3, torch.bfloat16, None),
    ],
    ids=str,
)
def test_tree_is_plain(new, dtype, options, device):
    """Rows on shared pages, read once for all: the bits of rows that are alone."""
    rows = paged_rows([100] * 7, (6, 2), 64, 16, dtype, device)
    for row, pages in enumerate([0, 4, 4, 4, 6, 2, 5]):
        rows.share(0, row, pages)
    requests = [(row, new, 100 - 3 * row) for row in range(7)]
    plain = [rows.attend([request], options=options)[0] for request in requests]
    work = rows.work(requests, rows.tiles())
    shared = [(items[:, ITEM_HEAD:] >= 0).sum(1).tolist() for items in (work.narrow, work.wide)]
    assert max(shared[1]) == min(7 * new, work.wide.shape[1] - ITEM_HEAD)
    for order in (range(7), [5, 2, 6, 0], [3, 1, 2]):
        tree = rows.attend([requests[i] for i in order], options=options)
        for i, out in zip(order, tree, strict=True):
            assert torch.equal(out, plain[i]), f"request {i} of {order}"


def test_bits_do_not_depend_on_the_tiles(device):
    rows = paged_rows([LONG, 60], (4, 2), 64, 16, torch.float32, device)
    rows.share(0, 1, 2)
    tiles = rows.tiles()
    requests = [(0, 50, LONG), (1, 5, 60), (0, 1, 90)]
    plain = torch.cat(rows.attend(requests))
    for others in (
        tiles.uniform(),
        replace(tiles, tile=replace(tiles.tile, block_m=64)),
        replace(tiles, narrow=replace(tiles.narrow, block_m=32)),
        replace(tiles, split_tokens=100),
    ):
        assert torch.equal(torch.cat(rows.attend(requests, tiles=others)), plain)


def test_bits_do_not_depend_on_the_page_size(device):
    outputs = [
        paged_rows([PRIME], (4, 2), 64, size, torch.float32, device).attend([(0, 30, PRIME)])[0]
        for size in (1, 4, 16, 64)
    ]
    assert all(torch.equal(out, outputs[0]) for out in outputs)


def test_room_for_more_than_there_is(device):
    """What a CUDA graph is captured with: padded tokens, items and partial results."""
    rows = paged_rows([PRIME, 70], (4, 2), 64, 16, torch.float32, device)
    requests = [(0, 1, PRIME), (1, 2, 70)]
    plain = torch.cat(rows.attend(requests))
    given = arguments(rows, requests)
    work, more = rows.work(requests, rows.tiles(), more=4), 3
    pad = torch.nn.functional.pad
    padded = replace(
        work,
        narrow=pad(work.narrow, (0, 0, 0, 5), value=7),
        wide=pad(work.wide, (0, 0, 0, 5), value=7),
        lookup=pad(work.lookup, (0, more), value=-1),
        part_start=pad(work.part_start, (0, more), value=int(work.part_start[-1])),
        num_parts=work.num_parts + 4,
    )
    given |= dict(
        q=pad(given["q"], (0, 0, 0, 0, 0, more), value=float("nan")),
        positions=pad(given["positions"], (0, more)),
        work=padded,
    )
    out = paged_attention(**given)
    assert torch.equal(out[:3], plain) and not out[3:].any()


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    requests=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 70)), min_size=1, max_size=4),
    group=st.integers(1, 16),
    page_log2=st.integers(0, 6),
    window=st.sampled_from([0, 0, 1, 30]),
    room=st.sampled_from([0, 3, 10**6]),
    seed=st.integers(0, 99),
)
def test_any_batch_matches_reference(requests, group, page_log2, window, room, seed, device):
    lengths = [new + cached for new, cached in requests]
    rows = paged_rows(lengths, (group, 1), 16, 1 << page_log2, torch.float32, device, seed=seed)
    batch = [(row, new, lengths[row]) for row, (new, _) in enumerate(requests)]
    assert_close(rows, batch, torch.float32, max_parts=room, options=Options(0.25, window=window))


def arguments(rows, requests):
    step, tiles = rows.step(requests), rows.tiles()
    return dict(
        q=step.q,
        k_cache=rows.k_cache,
        v_cache=rows.v_cache,
        page_table=step.table,
        positions=step.positions,
        work=rows.work(requests, tiles),
        tiles=tiles,
        options=Options(0.125),
        scales=None,
    )


def scales_of(change=lambda scale: scale):
    return lambda _: (torch.ones(5, 8, 2), change(torch.ones(5, 8, 2)))


CACHES = ("k_cache", "v_cache")
WRONG = {
    "q must be": dict(q=lambda q: q[0]),
    "same shape and strides": dict(v_cache=lambda v: v[:-1]),
    "page size": dict(k_cache=lambda k: k[:, :6], v_cache=lambda v: v[:, :6]),
    "do not fit": dict(q=lambda q: q[:, :3]),
    "multiple of 8": dict.fromkeys(("q", *CACHES), lambda x: x[..., :20]),
    "q is torch.bfloat16": dict(q=lambda q: q.bfloat16()),
    "float32, bfloat16 or float16": dict.fromkeys(("q", *CACHES), lambda x: x.double()),
    "last stride of q": dict(q=lambda q: q.transpose(0, 2).contiguous().transpose(0, 2)),
    "page_table must be int32": dict(page_table=lambda table: table.long()),
    "positions must be": dict(positions=lambda x: x[:-1]),
    "positions must be int32": dict(positions=lambda x: x.long()),
    "work.narrow must be": dict(work=lambda w: replace(w, narrow=w.narrow[:, 1:].contiguous())),
    "work.lookup must be": dict(work=lambda w: replace(w, lookup=w.lookup[1:])),
    "work.part_start must be": dict(work=lambda w: replace(w, part_start=w.part_start[1:])),
    "work.parts must be": dict(work=lambda w: replace(w, parts=w.parts.double())),
    "work.stats must be": dict(work=lambda w: replace(w, stats=w.stats[1:])),
    "no room for 99 partial": dict(work=lambda w: replace(w, num_parts=99)),
    "with scales, the cache": dict(scales=scales_of()),
    "scales must be float32": dict.fromkeys(CACHES, lambda x: x.to(torch.uint8))
    | dict(scales=scales_of(lambda scale: scale.double())),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_refused(sentence, device):
    good = arguments(paged_rows([9], (4, 2), 64, 8, torch.float32, device), [(0, 3, 9)])
    changes = WRONG[sentence]
    with pytest.raises(ValueError, match=sentence):
        paged_attention(**good | {name: change(good[name]) for name, change in changes.items()})


def test_nothing_to_do(device):
    rows = paged_rows([9], (4, 2), 64, 8, torch.float32, device)
    assert rows.attend([(0, 0, 9)])[0].shape == (0, 4, 64)


def test_addresses_beyond_32_bits(device):
    rows = paged_rows([16], (4, 2), 64, 16, torch.float16, device)
    expected = [rows.attend([(0, new, 16)], max_parts=room)[0] for new, room in ((9, 0), (2, 99))]
    caches, far_pages, page_id = caches_with_far_page((16, 2, 64), torch.float16, device)
    own_page = rows.page_table[0, 0].item()
    for far_page, cache in zip(far_pages, (rows.k_cache, rows.v_cache), strict=True):
        far_page.copy_(cache[own_page])
    rows.k_cache, rows.v_cache = caches
    rows.page_table[0, 0] = page_id
    for want, (new, room) in zip(expected, ((9, 0), (2, 99)), strict=True):
        assert torch.equal(rows.attend([(0, new, 16)], max_parts=room)[0], want)
