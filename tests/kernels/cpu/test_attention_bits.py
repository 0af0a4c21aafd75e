"""paged_attention in C bit for bit against itself: chunked, decoded, batched, shared, threaded."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from radixserve_kernels import cpu
from radixserve_kernels.attention_options import Options
from radixserve_kernels.cpu import paged_attention
from radixserve_kernels.cpu.attention import CHUNK
from tests.kernels.cpu.page_pool import page_pool
from tests.kernels.paged_rows import worst_error

DTYPES = [torch.float32, torch.float16]
OPTIONS = [Options(0.125), Options(0.125, 2.0, 75)]
options = pytest.mark.parametrize("options", OPTIONS, ids=str)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def bits(tensor):
    """Numbers by their bits: -0 is not 0, and a NaN is itself."""
    return tensor.contiguous().view(torch.int32)


def assert_same(got, want, what=""):
    assert torch.equal(bits(got), bits(want)), what


@options
@dtypes
def test_decoded_is_prefilled_is_chunked(options, dtype, body):
    length = 3 * CHUNK + 9
    pool = page_pool([length], (6, 2), 64, 16, dtype)
    cold = pool.attend([(0, length, length)], options)[0]
    decoded = [pool.attend([(0, 1, end)], options)[0] for end in range(1, length + 1)]
    assert_same(torch.cat(decoded), cold)
    random = np.random.default_rng(0)
    for pieces in (2, 3, 5, 20):
        cuts = sorted({0, length, *random.integers(1, length, pieces).tolist()})
        found = [pool.attend([(0, end - start, end)], options)[0] for start, end in pairwise(cuts)]
        assert_same(torch.cat(found), cold, cuts)


@options
@dtypes
def test_alone_is_in_a_batch(options, dtype, body):
    requests = [(0, 1, 97), (1, 100, 100), (2, 5, 190), (3, 1, 1), (2, 1, 64), (1, 12, 60)]
    pool = page_pool([97, 100, 190, 1], (6, 2), 64, 16, dtype)
    alone = [pool.attend([request], options)[0] for request in requests]
    for order in (range(6), (5, 4, 3, 2, 1, 0), (2, 0, 4), (3, 0, 4)):
        together = pool.attend([requests[i] for i in order], options)
        for i, out in zip(order, together, strict=True):
            assert_same(out, alone[i], (i, order))


def tree(heads, dtype=torch.float32, new=1):
    """Seven rows of 300 - 7 r tokens that share 256, 256, 192, 64, 150 and 0 of them with row 0."""
    pool = page_pool([300 - 7 * row for row in range(7)], heads, 64, 16, dtype)
    for row, tokens in enumerate((256, 256, 192, 64, 150, 0), 1):
        pool.share(0, row, tokens // 16)
    return pool, [(row, new, 300 - 7 * row) for row in range(7)]


@pytest.mark.parametrize("new", [1, 3, 40])
@options
@dtypes
def test_shared_pages_are_pages_apart(new, options, dtype, body):
    pool, requests = tree((6, 2), dtype, new)
    want = pool.apart().attend(requests, options)
    for order in (range(7), (6, 2, 5, 0), (3, 1, 2)):
        found = pool.attend([requests[i] for i in order], options)
        for i, out in zip(order, found, strict=True):
            assert_same(out, want[i], (i, order))


@pytest.mark.parametrize("new", [1, 3])
def test_a_shared_chunk_is_read_once(new):
    pool, requests = tree((6, 2), new=new)
    items = pool.plan(requests).items
    per_chunk = CHUNK // pool.page_size
    reads, wanted = [], set()
    for slot, chunk, _, _ in items.tolist():
        reads.append((chunk, *pool.table[slot, chunk * per_chunk : (chunk + 1) * per_chunk]))
    for row, _, length in requests:
        for chunk in range(-(-length // CHUNK)):
            ids = pool.table[row, chunk * per_chunk : (chunk + 1) * per_chunk]
            wanted.add((chunk, *ids))
    assert sorted(reads) == sorted(wanted)
    assert len(reads) == 5 + 1 + 1 + 2 + 4 + 3 + 5  # of row 0, and what each other row has alone
    seen = [end // CHUNK + 1 for *_, length in requests for end in range(length - new, length)]
    assert items[:, 3].sum() == sum(seen)
    apart = pool.apart().plan(requests).items
    assert len(apart) == sum(-(-length // CHUNK) for *_, length in requests)


def test_the_chunk_that_only_one_row_has_whole_is_not_shared():
    """Row 1's pages in the last chunk are row 0's, but it ends there: past its end are any ids."""
    pool = page_pool([128, 112], (2, 1), 16, 16)
    pool.share(0, 1, 7)
    assert len(pool.plan([(0, 1, 128), (1, 1, 112)]).items) == 3
    assert len(pool.plan([(0, 1, 128), (0, 1, 128)]).items) == 2


def test_chunks_that_differ_in_their_last_page_are_not_shared():
    """So many that the plan's table has several of them in one place."""
    pool = page_pool([CHUNK] * 60, (2, 1), 16, CHUNK // 2)
    for row in range(1, 60):
        pool.share(0, row, 1)
    requests = [(row, 1, CHUNK) for row in range(60)]
    assert len(pool.plan(requests).items) == 60
    want = pool.apart().attend(requests)
    assert_same(torch.cat(pool.attend(requests)), torch.cat(want))


def test_before_the_window_nothing_is_read():
    pool = page_pool([300, 290], (2, 1), 16, 16)
    pool.share(0, 1, 16)
    items = pool.plan([(0, 1, 300), (1, 1, 290)], 100).items
    assert sorted(items[:, 1].tolist()) == [2, 3, 4, 4] and items[:, 3].sum() == 5
    pool.table[:, :8] = 2**31 - 1
    pool.attend([(0, 1, 300), (1, 30, 290)], Options(0.1, window=100))


@pytest.mark.parametrize("threads", [2, 3])
def test_few_tiles_are_as_many_as_threads_can_share(threads):
    cpu.set_threads(threads)
    pool = page_pool([2050], (9, 3), 16, 16)
    tiles = pool.plan([(0, 50, 2050)]).num_tiles
    assert tiles * 3 % threads == 0 and tiles <= 7


@options
@pytest.mark.parametrize("threads", [2, 3, 16])
def test_threads_change_no_bits(threads, options, body):
    pool, decode = tree((9, 3))
    requests = [*decode, (0, 200, 280), (5, 9, 100), (6, 13, 250)]
    plan, q = pool.plan(requests, options.window), pool.step_queries(requests)
    want = paged_attention(q, pool.pages, plan, options)
    cpu.set_threads(threads)
    own = pool.plan(requests, options.window)
    assert own.num_tiles > plan.num_tiles if threads == 16 else own.num_tiles >= plan.num_tiles
    for _ in range(20):
        assert_same(paged_attention(q, pool.pages, own, options), want)
    assert_same(paged_attention(q, pool.pages, plan, options), want, "a plan for one thread")


@options
@dtypes
@pytest.mark.parametrize("size", [64, 80])
def test_bodies_agree(size, options, dtype, vector_bodies):
    pool = page_pool([200, 70, 131], (6, 2), size, 8, dtype)
    requests = [(0, 110, 200), (1, 1, 70), (2, 3, 131)]
    found = []
    for name in vector_bodies:
        cpu.load(name)
        found.append(torch.cat(pool.attend(requests, options)))
    assert_same(found[0], found[1])


def test_page_sizes_agree(body):
    lengths, found = [3 * CHUNK + 9, 70], []
    whole = page_pool(lengths, (4, 2), 32, max(lengths))
    for page_size in (1, 5, 16, 64, 200):
        pool = page_pool(lengths, (4, 2), 32, page_size)
        pool.queries = whole.queries
        for row, length in enumerate(lengths):
            for position in range(length):
                (page, at), (source, offset) = (p.place(row, position) for p in (pool, whole))
                pool.pages[page, :, :, at] = whole.pages[source, :, :, offset]
        found.append(torch.cat(pool.attend([(0, 100, lengths[0]), (1, 1, 70)])))
    for other in found[1:]:
        assert_same(other, found[0])


@pytest.mark.parametrize("half", ["K", "V"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@dtypes
def test_what_a_token_does_not_see_changes_none_of_its_bits(half, poison, dtype, body):
    """A broken token of its own row, later or before the window, also in the same chunk."""
    length, at, window = 2 * CHUNK + 20, CHUNK + 30, 40
    options = Options(0.125, window=window)
    pool = page_pool([length], (6, 2), 64, 16, dtype)
    everything = [(0, length, length)]
    want = pool.attend(everything, options)[0]
    page, offset = pool.place(0, at)
    pool.pages[page, "KV".index(half), :, offset] = poison
    found = pool.attend(everything, options)[0]
    assert_same(found[:at], want[:at])
    assert_same(found[at + window :], want[at + window :])
    assert not found[at : at + window].isfinite().flatten(1).all(1).any()
    decoded = [pool.attend([(0, 1, end)], options)[0] for end in range(1, length + 1)]
    assert_same(torch.cat(decoded)[:at], want[:at])
    assert_same(torch.cat(decoded)[at + window :], want[at + window :])


@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_tree_and_batch(data, body):
    """Close to the reference, and bit for bit what each token gets alone, on pages of its own."""
    draw = data.draw
    page_size = draw(st.sampled_from([1, 4, 7, 16, 48, 64]))
    lengths = draw(st.lists(st.integers(1, 230), min_size=1, max_size=5))
    heads = draw(st.sampled_from([(1, 1), (3, 1), (4, 2), (5, 1), (16, 1)]))
    dtype = draw(st.sampled_from(DTYPES))
    pool = page_pool(lengths, heads, draw(st.sampled_from([16, 20])), page_size, dtype)
    for row in range(1, len(lengths)):
        pool.share(draw(st.integers(0, row - 1)), row, draw(st.integers(0, 230)) // page_size)
    options = Options(
        0.25,
        draw(st.sampled_from([0.0, 0.0, 1.5])),
        draw(st.sampled_from([0, 0, 1, 30, 64, 100])),
    )
    requests = []
    for row in draw(st.permutations(range(len(lengths)))):
        length = draw(st.integers(1, lengths[row]))
        new = draw(st.one_of(st.just(1), st.integers(1, length)))
        requests.append((row, new, length))
    cpu.set_threads(draw(st.integers(1, 3)))
    found = pool.attend(requests, options)
    cpu.set_threads(1)
    assert worst_error(found, pool.expected(requests, options)) < 3e-6
    apart = pool.apart()
    for (row, new, length), out in zip(requests, found, strict=True):
        token = draw(st.integers(0, new - 1))
        alone = apart.attend([(row, 1, length - new + token + 1)], options)[0]
        assert_same(out[token : token + 1], alone, (row, token))
