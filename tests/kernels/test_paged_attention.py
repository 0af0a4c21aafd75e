"""paged_attention against the reference in float64, then bit for bit against itself."""

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from radixserve_kernels import reference
from radixserve_kernels.paged_attention import (
    OPTIONS,
    constants,
    paged_attention,
    paged_attention_kernel,
)
from radixserve_kernels.tiles import tile_for
from tests.kernels.paged_rows import TOLERANCE, caches_with_far_page, paged_rows, worst_error

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
PRIME = 37

# what triton 3.6's interpreter does with loop bounds under numpy 2.3
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0")


def assert_close(rows, requests, dtype, **kwargs):
    outputs = rows.attend(paged_attention, requests, **kwargs)
    assert all(out.dtype == dtype for out in outputs)
    expected = rows.doubled().attend(reference.paged_attention, requests)
    assert worst_error(outputs, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (8, 2), (8, 1), (16, 1)], ids=str)
def test_mixed_batch_matches_reference(heads, dtype, device):
    page = 8
    lengths = [1, page - 1, page, page + 1, PRIME]
    rows = paged_rows(lengths, heads, 64, page, dtype, device)
    news = [1, 1, page, 3, PRIME - 2]
    requests = [(row, news[row], lengths[row]) for row in (4, 0, 3, 1, 2)]
    assert_close(rows, requests, dtype)
    assert_close(rows, [(row, 1, lengths[row]) for row in range(5)], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_size", [16, 64, 80, 96, 128, 256])
def test_head_sizes(head_size, dtype, device):
    rows = paged_rows([PRIME, 17], (4, 2), head_size, 16, dtype, device)
    assert_close(rows, [(0, 5, PRIME), (1, 1, 17)], dtype)
    assert_close(rows, [(0, 1, PRIME), (1, 1, 17)], dtype)


@pytest.mark.parametrize("page_size", [1, 2, 16, 256])
def test_page_sizes(page_size, device):
    rows = paged_rows([PRIME, 1, 131], (4, 2), 64, page_size, torch.float32, device)
    assert_close(rows, [(2, 1, 131), (0, 20, PRIME), (1, 1, 1)], torch.float32)


def test_group_that_does_not_divide_the_tile_over_many_tiles(device):
    rows = paged_rows([131, 61], (6, 2), 64, 16, torch.float32, device)
    assert_close(rows, [(0, 131, 131), (1, 31, 61)], torch.float32)


def test_row_without_new_tokens_takes_no_part(device):
    rows = paged_rows([9, 20], (4, 2), 64, 8, torch.float32, device)
    out = rows.attend(paged_attention, [(0, 0, 9), (1, 4, 20), (0, 0, 9)])
    assert torch.equal(out[1], rows.attend(paged_attention, [(1, 4, 20)], max_new=4)[0])


def test_strided_queries_and_heads_first_pages(device):
    rows = paged_rows([PRIME], (4, 2), 64, 8, torch.float32, device)
    request = [(0, 7, PRIME)]
    plain = rows.attend(paged_attention, request)[0]
    page_table, row_start, kv_len = rows.tables(request)
    fused = torch.randn(7, 4 + 2 + 2, 64, device=device)
    fused[:, :4] = rows.queries[0][-7:]
    k_cache, v_cache = (
        cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (rows.k_cache, rows.v_cache)
    )
    out = paged_attention(
        fused[:, :4], k_cache, v_cache, page_table, row_start, kv_len, scale=0.125, max_new=7
    )
    assert out.is_contiguous() and torch.equal(out, plain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_do_not_depend_on_where_the_prompt_is_split(dtype, device):
    length = 70
    rows = paged_rows([length], (4, 2), 64, 16, dtype, device)
    cold = rows.attend(paged_attention, [(0, length, length)])[0]
    for cached in (0, 1, 15, 16, 17, 32, 63, 64, 65):
        hot = rows.attend(paged_attention, [(0, length - cached, length)])[0]
        assert torch.equal(hot, cold[cached:]), f"cached {cached}"
    for end in (1, 16, 33, 64, 65, length):
        decoded = rows.attend(paged_attention, [(0, 1, end)])[0]
        assert torch.equal(decoded, cold[end - 1 : end]), f"decode at {end}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_do_not_depend_on_the_batch(dtype, device):
    requests = [(0, 1, PRIME), (1, 40, 40), (2, 5, 90), (3, 1, 1), (2, 1, 64)]
    rows = paged_rows([PRIME, 40, 90, 1], (6, 2), 64, 16, dtype, device)
    alone = [rows.attend(paged_attention, [request])[0] for request in requests]
    for order in ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4), (3, 0, 4)):
        together = rows.attend(paged_attention, [requests[i] for i in order])
        for i, out in zip(order, together, strict=True):
            assert torch.equal(out, alone[i]), f"request {i} in {order}"


def test_bits_do_not_depend_on_the_bound_given(device):
    rows = paged_rows([PRIME, 20], (4, 2), 64, 16, torch.float32, device)
    requests = [(0, 1, PRIME), (1, 3, 20)]
    for bound in (4, 5, 8, 9, 1000):
        assert_close(rows, requests, torch.float32, max_new=bound)
        out = rows.attend(paged_attention, requests, max_new=bound)
        assert torch.equal(torch.cat(out), torch.cat(rows.attend(paged_attention, requests)))


def test_bits_do_not_depend_on_the_page_size(device):
    outputs = [
        paged_rows([PRIME], (4, 2), 64, page_size, torch.float32, device).attend(
            paged_attention, [(0, 30, PRIME)]
        )[0]
        for page_size in (1, 4, 16, 64)
    ]
    assert all(torch.equal(out, outputs[0]) for out in outputs)


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    requests=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=4),
    group=st.integers(1, 5),
    page_log2=st.integers(0, 6),
    seed=st.integers(0, 99),
)
def test_any_batch_matches_reference(requests, group, page_log2, seed, device):
    lengths = [new + cached for new, cached in requests]
    rows = paged_rows(lengths, (group, 1), 16, 1 << page_log2, torch.float32, device, seed=seed)
    batch = [(row, new, lengths[row]) for row, (new, _) in enumerate(requests)]
    assert_close(rows, batch, torch.float32)


def arguments(device, **changes):
    """A call that is in order, but for `changes`."""
    rows = paged_rows([9], (4, 2), 64, 8, torch.float32, device)
    page_table, row_start, kv_len = rows.tables([(0, 3, 9)])
    good = dict(
        q=rows.queries[0][-3:],
        k_cache=rows.k_cache,
        v_cache=rows.v_cache,
        page_table=page_table,
        row_start=row_start,
        kv_len=kv_len,
        scale=0.125,
        max_new=3,
    )
    return good | {name: change(good[name]) for name, change in changes.items()}


WRONG = {
    "q must be": dict(q=lambda q: q[0]),
    "same shape and strides": dict(v_cache=lambda v: v[:-1]),
    "page size": dict(k_cache=lambda k: k[:, :6], v_cache=lambda v: v[:, :6]),
    "do not fit": dict(q=lambda q: q[:, :3]),
    "multiple of 8": dict.fromkeys(("q", "k_cache", "v_cache"), lambda x: x[..., :20]),
    "q is torch.bfloat16": dict(q=lambda q: q.bfloat16()),
    "float32, bfloat16 or float16": dict.fromkeys(
        ("q", "k_cache", "v_cache"), lambda x: x.double()
    ),
    "last stride of q": dict(q=lambda q: q.transpose(0, 2).contiguous().transpose(0, 2)),
    "page_table must be int32": dict(page_table=lambda table: table.long()),
    "page_table must have 2": dict(page_table=lambda table: table[0]),
    "row_start must have 1": dict(row_start=lambda start: start[:-1]),
    "kv_len must be int32": dict(kv_len=lambda length: length.long()),
    "max_new must be at least 1": dict(max_new=lambda _: 0),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_refused(sentence, device):
    with pytest.raises(ValueError, match=sentence):
        paged_attention(**arguments(device, **WRONG[sentence]))


def test_reference_refuses_a_bound_that_is_too_small(device):
    with pytest.raises(ValueError, match="row 0 has 3 new tokens"):
        reference.paged_attention(**arguments(device, max_new=lambda _: 2))


def test_nothing_to_do(device):
    empty = arguments(
        device,
        q=lambda q: q[:0],
        page_table=lambda table: table[:0],
        row_start=lambda start: start[:1],
        kv_len=lambda length: length[:0],
    )
    assert paged_attention(**empty).shape == (0, 4, 64)


def test_a_program_writes_its_own_tile_only(device):
    new, page_size = 25, 8
    rows = paged_rows([new], (6, 2), 64, page_size, torch.float32, device)
    q, tables = rows.queries[0], rows.tables([(0, new, new)])
    tile = tile_for(4, 64, 3, new)
    compiled = constants(q, rows.k_cache, tile, new)
    out = torch.empty(q.shape, device=device)
    first_tile_of_each_head = (2,)
    paged_attention_kernel[first_tile_of_each_head](
        q, rows.k_cache, rows.v_cache, *tables, out, 1, tables[0].stride(0), 1.0,
        **compiled, num_warps=4, **OPTIONS,
    )  # fmt: skip
    own = tile.block_m // 3
    assert own < new
    assert not out[:own].isnan().any() and out[own:].isnan().all()


def test_addresses_beyond_32_bits(device):
    rows = paged_rows([16], (4, 2), 64, 16, torch.float16, device)
    expected = rows.attend(paged_attention, [(0, 9, 16)])[0]
    caches, far_pages, page_id = caches_with_far_page((16, 2, 64), torch.float16, device)
    own_page = rows.page_table[0, 0].item()
    for far_page, cache in zip(far_pages, (rows.k_cache, rows.v_cache), strict=True):
        far_page.copy_(cache[own_page])
    rows.k_cache, rows.v_cache = caches
    rows.page_table[0, 0] = page_id
    assert torch.equal(rows.attend(paged_attention, [(0, 9, 16)])[0], expected)
