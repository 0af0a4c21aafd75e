"""paged_attention in C against the reference in float64, and what it refuses."""

import mmap
from dataclasses import replace

import numpy as np
import pytest
import torch

from radixserve_kernels import cpu
from radixserve_kernels.attention_options import Options
from radixserve_kernels.cpu import AttentionPlan, Parts, Shape, paged_attention
from tests.kernels.cpu.page_pool import page_pool
from tests.kernels.paged_rows import worst_error

DTYPES = [torch.float32, torch.float16]
MOST_ERROR = 3e-6  # of a (token, head) vector, relative to its length
LONG = 3 * 64 + 5


def assert_close(pool, requests, options=None, most=MOST_ERROR):
    outputs = pool.attend(requests, options)
    assert worst_error(outputs, pool.expected(requests, options)) < most


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [(2, 2), (9, 3), (8, 2), (10, 2), (16, 1)], ids=str)
def test_mixed_batch_matches_reference(heads, dtype, body):
    lengths = [1, 63, 64, 65, LONG, 128]
    pool = page_pool(lengths, heads, 64, 16, dtype)
    news = [1, 1, 64, 3, LONG - 2, 40]
    requests = [(row, news[row], lengths[row]) for row in (4, 0, 3, 5, 1, 2)]
    assert_close(pool, requests)
    assert_close(pool, [(row, 1, lengths[row]) for row in range(6)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "size"), [((10, 5), 64), ((3, 3), 192), ((14, 7), 16)], ids=str)
def test_a_chunk_of_several_heads_at_once(heads, size, dtype, body):
    """Many chunks: a unit has as many K/V heads as fit, and the last one has fewer."""
    lengths = [LONG + 130 * row for row in range(4)]
    pool = page_pool(lengths, heads, size, 16, dtype)
    pool.share(0, 1, 150)
    requests = [(row, 1 + row % 2, length) for row, length in enumerate(lengths)]
    assert_close(pool, requests)
    assert_close(pool, requests, Options(size**-0.5, window=100))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [2, 10, 16, 24, 64, 80, 96, 128, 256])
def test_head_sizes(size, dtype, body):
    pool = page_pool([LONG, 70], (4, 2), size, 16, dtype)
    assert_close(pool, [(0, 100, LONG), (1, 5, 70)])
    assert_close(pool, [(0, 1, LONG), (1, 1, 70)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 16, 24, 32, 64, 100, 256])
def test_page_sizes(page_size, dtype, body):
    pool = page_pool([LONG, 1, 300], (4, 2), 32, page_size, dtype)
    pool.share(0, 2, 1000)
    assert_close(pool, [(2, 1, 300), (0, 90, LONG), (1, 1, 1)])
    assert_close(pool, [(2, 2, 300), (0, 1, LONG)])


@pytest.mark.parametrize("group", range(1, 17))
def test_groups(group, body):
    pool = page_pool([100, 130, 150], (group, 1), 16, 8)
    pool.share(1, 2, 16)
    assert_close(pool, [(0, 100, 100), (1, 2, 130), (2, 1, 150)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [Options(0.2, softcap=3.0), Options(0.125, window=5), Options(0.125, window=64),
     Options(0.125, window=1), Options(0.2, softcap=2.0, window=70), Options(0.1, window=10**6)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("page_size", [8, 16])
def test_softcap_and_window(options, page_size, dtype, body):
    pool = page_pool([LONG, 7, 150], (4, 2), 64, page_size, dtype)
    assert_close(pool, [(0, 160, LONG), (2, 30, 150)], options)
    assert_close(pool, [(0, 9, LONG), (1, 1, 7), (2, 1, 150)], options)


@pytest.mark.parametrize("softcap", [0.0, 40.0])
def test_scores_far_apart(softcap, body):
    """Weights down to nothing; a score of some hundreds is known to a ten-thousandth."""
    pool = page_pool([LONG], (4, 2), 64, 16)
    assert_close(pool, [(0, LONG, LONG)], Options(8.0, softcap), most=3e-4)
    assert_close(pool, [(0, 1, LONG)], Options(8.0, softcap), most=3e-4)


def test_rows_without_new_tokens_take_no_part(body):
    pool = page_pool([9, 20], (4, 2), 64, 8)
    out = pool.attend([(0, 0, 9), (1, 4, 20), (0, 0, 9)])
    assert torch.equal(out[1], pool.attend([(1, 4, 20)])[0])
    assert [len(o) for o in pool.attend([(0, 0, 9)])] == [0]


def test_no_rows_at_all():
    pool = page_pool([9], (4, 2), 64, 8)
    none = np.zeros(0, np.int64)
    plan = AttentionPlan(none, np.zeros(1, np.int64), none, pool.table, Shape.of(pool.pages, 4))
    out = paged_attention(torch.empty(0, 4, 64), pool.pages, plan, Options(0.125))
    assert out.shape == (0, 4, 64) and len(plan.items) == plan.num_tiles == 0


def test_queries_may_lie_apart_and_out_is_given(body):
    pool = page_pool([LONG], (6, 2), 64, 8)
    for new in (3, 90):
        request = [(0, new, LONG)]
        fused = torch.full((new, 6 + 2 + 2, 64), float("nan"))
        fused[:, :6] = pool.step_queries(request)
        out = torch.full((new, 6, 64), float("nan"))
        options = Options(0.125)
        found = paged_attention(fused[:, :6], pool.pages, pool.plan(request), options, out)
        assert found is out and torch.equal(out, pool.attend(request, options)[0])


def test_one_plan_serves_all_layers_and_parts_are_reused(body):
    options, parts = Options(0.125), Parts()
    pools = [page_pool([LONG, 80], (4, 2), 64, 16, seed=seed) for seed in (1, 2)]
    pools[1].table[:] = pools[0].table
    requests = [(0, 1, LONG), (1, 2, 80)]
    plan = pools[0].plan(requests, parts=parts)
    for pool in pools:
        own = page_pool([LONG, 80], (4, 2), 64, 16, seed=0)
        own = replace(own, pages=pool.pages.nan_to_num(), queries=pool.queries, table=pool.table)
        out = paged_attention(own.step_queries(requests), own.pages, plan, options)
        assert worst_error([out], [torch.cat(own.expected(requests))]) < MOST_ERROR
    larger = pools[0].plan([(0, 2, LONG), (1, 2, 80)], parts=parts)
    smaller = pools[0].plan([(0, 1, LONG)], parts=parts)
    for again, request in ((larger, [(0, 2, LONG), (1, 2, 80)]), (smaller, [(0, 1, LONG)])):
        out = paged_attention(pools[0].step_queries(request), pools[0].pages, again, options)
        assert torch.equal(out, torch.cat(pools[0].attend(request)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_addresses_beyond_32_bits(dtype, body):
    """Pages in memory that is never touched up to the last one, so it is never there."""
    shape = (2, 2, 16, 64)
    numbers = torch.Size(shape).numel()
    page_id = 2**31 // numbers + 1
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, (page_id + 1) * numbers * dtype.itemsize, flags=flags)
    pages = torch.frombuffer(memory, dtype=dtype).view(-1, *shape)
    small = page_pool([16], (4, 2), 64, 16, dtype)
    pages[page_id] = small.pages[small.table[0, 0]]
    table = np.array([[page_id]], np.int32)
    far = replace(small, pages=pages, table=table)
    for new in (1, 16):
        assert torch.equal(far.attend([(0, new, 16)])[0], small.attend([(0, new, 16)])[0])


def rows(**changed):
    """Arguments of a plan of two rows, with some of them changed."""
    pool = page_pool([20, 30], (4, 2), 64, 8)
    return {
        "row_slot": np.array([0, 1]),
        "row_start": np.array([0, 1, 4]),
        "kv_len": np.array([20, 30]),
        "page_table": pool.table,
        "shape": Shape.of(pool.pages, 4),
        **changed,
    }


WRONG_ROWS = {
    "must be .R., .R . 1. and .R.": dict(row_start=np.array([0, 1])),
    "rise from 0": dict(row_start=np.array([1, 2, 4])),
    "by at most kv_len": dict(row_start=np.array([0, 21, 24])),
    "rise": dict(row_start=np.array([0, 4, 1])),
    "page_table must be": dict(page_table=np.zeros((2, 4), np.int64)),
    "contiguous rows": dict(page_table=np.zeros((4, 2), np.int32).T),
    "row_slot must name": dict(row_slot=np.array([0, 2])),
    "rows of the page table": dict(row_slot=np.array([0, -1])),
    "no room in the page table": dict(kv_len=np.array([20, 60])),
    "page that is none of": dict(kv_len=np.array([20, 33])),
    "window must be": dict(window=-1),
}


@pytest.mark.parametrize("sentence", WRONG_ROWS)
def test_wrong_rows_are_refused(sentence):
    with pytest.raises(ValueError, match=sentence):
        AttentionPlan(**rows(**WRONG_ROWS[sentence]))
    AttentionPlan(**rows())


@pytest.mark.parametrize("new", [3, 30])
@pytest.mark.parametrize("bad", [-1, 9])
def test_pages_that_are_not_there_are_refused(new, bad):
    wrong = rows(row_start=np.array([0, 1, 1 + new]))
    wrong["page_table"][1, 2] = bad
    with pytest.raises(ValueError, match="page that is none of"):
        AttentionPlan(**wrong | {"shape": replace(wrong["shape"], num_pages=9)})


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [((9, 5, 2, 8, 64), "multiple of 2 K/V heads"), ((9, 97, 1, 8, 64), "at most 96 times"),
     ((9, 4, 2, 8, 257), "at most 256"), ((9, 4, 0, 8, 64), "no heads"),
     ((9, 1, 2, 8, 64), "no heads"), ((9, 4, 2, 8, 0), "without numbers")],
)  # fmt: skip
def test_wrong_shapes_are_refused(sizes, sentence):
    with pytest.raises(ValueError, match=sentence):
        Shape(*sizes)


WRONG = {
    "q and out must be .4, 4, 64. as planned": dict(q=lambda q: q[:3]),
    "as planned, are": dict(out=lambda out: out[:, :2]),
    "pages must be .10, 2": dict(pages=lambda pages: pages[1:]),
    "q and out must be float32": dict(q=lambda q: q.double()),
    "float32, are": dict(out=lambda out: out.half()),
    "pages must be float32 or float16": dict(pages=lambda pages: pages.bfloat16()),
    "last stride of q 1": dict(q=lambda q: q.transpose(0, 2).contiguous().transpose(0, 2)),
    "out must be contiguous": dict(
        out=lambda out: out.transpose(0, 1).contiguous().transpose(0, 1)
    ),
    "pages and out": dict(pages=lambda pages: pages.transpose(1, 2).contiguous().transpose(1, 2)),
    "window of 0, not 7": dict(options=lambda options: replace(options, window=7)),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_refused(sentence):
    pool = page_pool([20, 30], (4, 2), 64, 8)
    requests = [(0, 1, 20), (1, 3, 30)]
    good = dict(
        q=pool.step_queries(requests),
        pages=pool.pages,
        plan=pool.plan(requests),
        options=Options(0.125),
        out=torch.zeros(4, 4, 64),
    )
    changed = {name: change(good[name]) for name, change in WRONG[sentence].items()}
    with pytest.raises(ValueError, match=sentence):
        paged_attention(**good | changed)
    assert cpu.paged_attention(**good).isfinite().all()
