"""rope_kv_write against float64 and, for what it only copies, bit for bit."""

import pytest
import torch

from radixserve_kernels import reference
from radixserve_kernels.rope_kv_write import rope_kv_write
from tests.kernels.paged_rows import TOLERANCE, caches_with_far_page, fp8_caches, worst_error

NAMES = ("q", "k", "v", "turn", "k_cache", "v_cache", "slots")
MARK = -7.0  # what pages hold before the call
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def tensors(num_tokens, device, *, dtype=torch.float32, heads=(6, 3), head_size=64, page_size=8):
    """q, k and v as views of one tensor with NaN between tokens; shuffled slots."""
    generator = torch.Generator().manual_seed(num_tokens)
    q_heads, kv_heads = heads
    joined = torch.full((num_tokens, q_heads + 2 * kv_heads + 1, head_size), float("nan"))
    joined[:, :-1] = torch.randn(joined[:, :-1].shape, generator=generator)
    q, k, v, _ = joined.to(device, dtype).split((q_heads, kv_heads, kv_heads, 1), 1)
    angle = 100 * torch.rand(num_tokens, head_size // 2, generator=generator)
    turn = torch.polar(torch.full_like(angle, 1.25), angle).to(device)
    num_pages = num_tokens // page_size + 3
    shape = (num_pages, page_size, kv_heads, head_size)
    caches = [torch.full(shape, MARK, dtype=dtype, device=device) for _ in "kv"]
    slots = torch.randperm(num_pages * page_size, generator=generator)[:num_tokens].to(device)
    return q, k, v, turn, *caches, slots


def assert_close(q, k, v, turn, k_cache, v_cache, slots):
    exact = [t.double() for t in (q, k, v)]
    exact_caches = [t.double() for t in (k_cache, v_cache)]
    reference.rope_kv_write(*exact, turn, *exact_caches, slots)
    kept = v.clone()
    rope_kv_write(q, k, v, turn, k_cache, v_cache, slots)
    tolerance = TOLERANCE[q.dtype]
    assert worst_error([q, k, k_cache], [*exact[:2], exact_caches[0]]) < tolerance
    assert torch.equal(v_cache.double(), exact_caches[1]) and torch.equal(v, kept)
    written = slots[slots >= 0].long()
    assert torch.equal(k_cache.flatten(0, 1)[written], k[slots >= 0])
    untouched = torch.ones(k_cache.shape[:2].numel(), dtype=torch.bool, device=q.device)
    untouched[written] = False
    assert (k_cache.flatten(0, 1)[untouched] == MARK).all()


@dtypes
@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 37])
def test_matches_reference(num_tokens, dtype, device):
    assert_close(*tensors(num_tokens, device, dtype=dtype))


@pytest.mark.parametrize("head_size", [2, 16, 80, 96, 128, 256])
@pytest.mark.parametrize("page_size", [1, 16])
def test_head_and_page_sizes(head_size, page_size, device):
    assert_close(*tensors(5, device, head_size=head_size, page_size=page_size))


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (8, 2), (8, 1)], ids=str)
def test_groups(heads, device):
    assert_close(*tensors(9, device, heads=heads))


def test_tensors_apart_and_heads_first_pages(device):
    q, k, v, turn, k_cache, v_cache, slots = tensors(9, device)
    k_cache, v_cache = (
        cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (k_cache, v_cache)
    )
    assert_close(q.contiguous(), k.contiguous(), v.contiguous(), turn, k_cache, v_cache, slots)


def test_negative_slots_are_rotated_but_not_written_and_int32_will_do(device):
    q, k, v, turn, k_cache, v_cache, slots = tensors(20, device)
    slots[3:9] = -1
    slots[11] = -(2**31)
    assert_close(q, k, v, turn, k_cache, v_cache, slots.int())


def test_bits_do_not_depend_on_the_batch(device):
    together = tensors(19, device)
    q, k, v, turn, k_cache, v_cache, slots = (t.clone() for t in together)
    rope_kv_write(*together)
    for t in reversed(range(19)):
        one = slice(t, t + 1)
        rope_kv_write(q[one], k[one], v[one], turn[one], k_cache, v_cache, slots[one])
    for alone, name in zip((q, k, v, turn, k_cache, v_cache), NAMES, strict=False):
        assert torch.equal(alone, together[NAMES.index(name)]), name


def test_nothing_to_do(device):
    q, k, v, turn, k_cache, v_cache, slots = tensors(4, device)
    rope_kv_write(q[:0], k[:0], v[:0], turn[:0], k_cache, v_cache, slots[:0])
    assert (k_cache == MARK).all() and (v_cache == MARK).all()


def test_addresses_beyond_32_bits(device):
    caches, far_pages, page_id = caches_with_far_page((16, 2, 64), torch.float16, device)
    ones = torch.ones(2, 2, 64, dtype=torch.float16, device=device)
    turn = torch.full((2, 32), 2j, dtype=torch.complex64, device=device)
    slots = torch.tensor([page_id * 16 + 3, page_id * 16 + 15], device=device)
    rope_kv_write(ones.clone(), ones.clone(), 3 * ones, turn, *caches, slots)
    assert [cache.sum().item() for cache in caches] == [0, 0]
    keys, values = (page[[3, 15]] for page in far_pages)
    assert (keys[..., ::2] == -2).all() and (keys[..., 1::2] == 2).all() and (values == 3).all()
    assert far_pages[0].abs().sum().item() == 512 and far_pages[1].sum().item() == 768


@dtypes
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256])
def test_fp8_is_the_quantised_form_of_what_is_written_without(head_size, dtype, device):
    """Rotates to the same bits; codes and scales are the reference's of those bits."""
    q, k, v, turn, k_cache, v_cache, slots = tensors(19, device, dtype=dtype, head_size=head_size)
    slots[4] = -1
    plain = [t.clone() for t in (q, k, v)]
    rope_kv_write(*plain, turn, k_cache, v_cache, slots)
    *caches, scales = fp8_caches(*k_cache.shape, device)
    expected = [t.clone() for t in caches], tuple(t.clone() for t in scales)
    reference.kv_write(*plain[1:], *expected[0], slots, scales=expected[1])
    rope_kv_write(q, k, v, turn, *caches, slots, scales=scales)
    for got, want in zip((q, k, v, *caches), (*plain, *expected[0]), strict=True):
        assert torch.equal(got, want)
    for got, want in zip(scales, expected[1], strict=True):
        assert torch.equal(got.view(torch.int32), want.view(torch.int32))


@dtypes
def test_fp8_keys_come_back_close_to_the_exact_rotation(dtype, device):
    q, k, v, turn, *_, slots = tensors(19, device, dtype=dtype)
    *caches, scales = fp8_caches(5, 8, 3, 64, device)
    exact = [t.double() for t in (q, k, v)]
    plain = [torch.zeros(5, 8, 3, 64, dtype=torch.float64, device=device) for _ in "kv"]
    reference.rope_kv_write(*exact, turn, *plain, slots)
    rope_kv_write(q, k, v, turn, *caches, slots, scales=scales)
    for cache, scale, want in zip(caches, scales, plain, strict=True):
        back, expected = (
            t.flatten(0, 1)[slots] for t in (reference.dequantised(cache, scale), want)
        )
        assert 0.005 < worst_error([back], [expected]) < 0.05


def transposed(x):
    return x.transpose(0, -1).contiguous().transpose(0, -1)


WRONG = {
    "q must be": dict(q=lambda q: q[0]),
    "even D": dict(q=lambda q: q[..., :-1]),
    "k and v must be": dict(v=lambda v: v[:-1]),
    "with q's T and D": dict(q=lambda q: q[..., :-2]),
    "turn must be .T, D / 2. complex64": dict(turn=lambda t: t.real),
    "with k's heads": dict(k_cache=lambda c: c[:, :, :2]),
    "same shape and strides": dict(v_cache=lambda c: c[:-1]),
    "slots must be 4": dict(slots=lambda s: s[:-1]),
    "int32 or int64": dict(slots=lambda s: s.float()),
    "one dtype": dict(v=lambda v: v.half()),
    "uint8 cache and no other": {name: lambda c: c.byte() for name in ("k_cache", "v_cache")},
    "float32, bfloat16 or float16": {
        name: lambda x: x.double() for name in ("q", "k", "v", "k_cache", "v_cache")
    },
    "last stride": dict(k=transposed),
    "turn must be contiguous": dict(turn=transposed),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_refused(sentence, device):
    good = dict(zip(NAMES, tensors(4, device), strict=True))
    changed = {name: change(good[name]) for name, change in WRONG[sentence].items()}
    with pytest.raises(ValueError, match=sentence):
        rope_kv_write(**good | changed)
