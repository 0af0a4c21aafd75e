"""rope_kv_write in C against its twin in float64, bit for bit against itself; what it refuses."""

import pytest
import torch

from radixserve_kernels import cpu, reference
from radixserve_kernels.cpu import rope_kv_write

DTYPES = [torch.float32, torch.float16]
MARK = 77.0
NAMES = ("q", "k", "v", "turn", "pages", "slots")
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def tensors(num_tokens, *, heads=(6, 2), size=64, page_size=16, dtype=torch.float32):
    """Arguments by name: q, k and v as views of one product with NaN behind, marked pages."""
    generator = torch.Generator().manual_seed(num_tokens + size)
    q_heads, kv_heads = heads
    fused = torch.full((num_tokens, q_heads + 2 * kv_heads + 1, size), float("nan"))
    fused[:, :-1] = torch.randn(num_tokens, q_heads + 2 * kv_heads, size, generator=generator)
    q, k, v, _ = fused.split((q_heads, kv_heads, kv_heads, 1), 1)
    angle = 100 * torch.rand(num_tokens, size // 2, generator=generator)
    num_pages = -(-num_tokens // page_size) + 2
    pages = torch.full((num_pages, 2, kv_heads, page_size, size), MARK, dtype=dtype)
    slots = torch.randperm(num_pages * page_size, generator=generator)[:num_tokens]
    return dict(zip(NAMES, (q, k, v, torch.polar(torch.ones_like(angle), angle), pages, slots),
                    strict=True))  # fmt: skip


def copied(arguments):
    """The same with q, k and v of their own."""
    return {name: value.clone() for name, value in arguments.items()}


def assert_close(arguments):
    names = ("q", "k", "v")
    exact = {n: arguments[n].double() for n in names} | {n: arguments[n] for n in ("turn", "slots")}
    pages = arguments["pages"]
    kept = arguments["v"].clone()
    expected = pages.double()
    caches = (expected[:, half].transpose(1, 2) for half in (0, 1))
    reference.rope_kv_write(**exact, k_cache=next(caches), v_cache=next(caches))
    rope_kv_write(**arguments)
    for name in ("q", "k"):
        torch.testing.assert_close(arguments[name].double(), exact[name], rtol=2e-7, atol=5e-7)
    assert torch.equal(arguments["v"], kept)
    step = {torch.float32: 5e-7, torch.float16: 2**-10}[pages.dtype]
    torch.testing.assert_close(pages.double(), expected, rtol=step, atol=step)
    written = arguments["slots"] >= 0
    slots, page_size = arguments["slots"][written].long(), pages.shape[3]
    for half, name in enumerate(("k", "v")):
        found = pages[slots // page_size, half, :, slots % page_size]
        assert torch.equal(found, arguments[name][written].to(pages.dtype))
    marked = torch.ones(len(pages) * page_size, dtype=torch.bool)
    marked[slots] = False
    assert (pages.permute(0, 3, 1, 2, 4).flatten(0, 1)[marked] == MARK).all()


@dtypes
@pytest.mark.parametrize("num_tokens", [1, 2, 37])
def test_matches_reference(num_tokens, dtype, body):
    assert_close(tensors(num_tokens, dtype=dtype))


@dtypes
@pytest.mark.parametrize("size", [2, 6, 16, 24, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("page_size", [1, 7, 16])
def test_head_and_page_sizes(size, page_size, dtype, body):
    assert_close(tensors(5, size=size, page_size=page_size, dtype=dtype))


@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (8, 2), (16, 1)], ids=str)
def test_heads(heads, body):
    assert_close(tensors(9, heads=heads))


def test_tensors_apart_and_a_turn_for_all_heads(body):
    arguments = copied(tensors(9))
    assert_close(arguments | {"turn": arguments["turn"].clone()})
    once, twice = copied(tensors(9)), copied(tensors(9))
    rope_kv_write(**once)
    rope_kv_write(**twice | {"turn": twice["turn"].unsqueeze(1)})
    assert torch.equal(once["q"], twice["q"]) and torch.equal(once["pages"], twice["pages"])


def test_negative_slots_are_rotated_but_not_written_and_int32_will_do(body):
    arguments = tensors(20)
    arguments["slots"][3:9] = -1
    arguments["slots"][11] = -(2**31)
    assert_close(arguments | {"slots": arguments["slots"].int()})


def test_without_a_turn_k_is_written_as_it_is(body):
    arguments = copied(tensors(9))
    q, k = arguments["q"].clone(), arguments["k"].clone()
    rope_kv_write(**arguments | {"turn": None})
    assert torch.equal(arguments["q"], q) and torch.equal(arguments["k"], k)
    slots, pages = arguments["slots"], arguments["pages"]
    assert torch.equal(pages[slots // 16, 0, :, slots % 16], k)


def test_half_precision_is_torchs_rounding(body):
    """Ties, subnormals, what becomes infinite, NaN."""
    generator = torch.Generator().manual_seed(0)
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    between = (every[:-1] + every[1:]) / 2
    values = torch.cat((every, between, torch.tensor([0.0, 65519.9, 65520.0, -1e30, 2.0**-25])))
    values = values[torch.randperm(len(values), generator=generator)]
    k = values[: len(values) // 64 * 64].view(-1, 1, 64)
    arguments = tensors(len(k), heads=(1, 1), dtype=torch.float16)
    arguments |= {"k": k.clone(), "v": k.flip(0).clone(), "turn": None}
    rope_kv_write(**arguments)
    slots, pages = arguments["slots"], arguments["pages"]
    for half, want in ((0, k), (1, k.flip(0))):
        found = pages[slots // 16, half, :, slots % 16].float()
        torch.testing.assert_close(found, want.half().float(), rtol=0, atol=0, equal_nan=True)


def outcome(arguments):
    rope_kv_write(**arguments)
    return [arguments[name].contiguous() for name in ("q", "k", "pages")]


@dtypes
def test_bits_do_not_depend_on_the_batch(dtype, body):
    together, alone = tensors(19, dtype=dtype), copied(tensors(19, dtype=dtype))
    want = outcome(together)
    for t in reversed(range(19)):
        one = {name: alone[name][t : t + 1] for name in NAMES if name != "pages"}
        rope_kv_write(**one, pages=alone["pages"])
    for name, tensor in zip(("q", "k", "pages"), want, strict=True):
        assert torch.equal(alone[name], tensor), name


@dtypes
def test_bits_do_not_depend_on_threads(dtype, body):
    want = outcome(tensors(300, dtype=dtype))
    for threads in (2, 3):
        cpu.set_threads(threads)
        for got, tensor in zip(outcome(tensors(300, dtype=dtype)), want, strict=True):
            assert torch.equal(got, tensor)


@dtypes
@pytest.mark.parametrize("size", [64, 24])
def test_bodies_agree(size, dtype, vector_bodies):
    found = []
    for name in vector_bodies:
        cpu.load(name)
        found.append(outcome(tensors(19, size=size, dtype=dtype)))
    assert all(map(torch.equal, *found))


def test_nothing_to_do():
    arguments = tensors(4)
    rope_kv_write(**{n: t if n == "pages" else t[:0] for n, t in arguments.items()})
    assert (arguments["pages"] == MARK).all()


def transposed(x):
    return x.transpose(0, -1).contiguous().transpose(0, -1)


WRONG = {
    "q must be": dict(q=lambda q: q[0]),
    "even D": dict(q=lambda q: q[..., :-1]),
    "k and v must be": dict(v=lambda v: v[:-1]),
    "with q's T and D": dict(q=lambda q: q[..., :-2]),
    "pages must be .num_pages": dict(pages=lambda p: p[:, 0]),
    "with k's Hkv and D": dict(pages=lambda p: p[:, :, :1]),
    "turn must be .T, D / 2. complex64": dict(turn=lambda t: t.real),
    "complex64, is": dict(turn=lambda t: t[:-1]),
    "turn must be contiguous": dict(turn=transposed),
    "slots must be 4": dict(slots=lambda s: s[:-1]),
    "int32 or int64": dict(slots=lambda s: s.float()),
    "q, k and v must be float32": dict(q=lambda q: q.double()),
    "float32, are": dict(v=lambda v: v.half()),
    "pages must be float32 or float16": dict(pages=lambda p: p.bfloat16()),
    "last stride": dict(k=transposed),
    "pages contiguous": dict(pages=transposed),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_arguments_are_refused(sentence):
    good = tensors(4)
    changed = {name: change(good[name]) for name, change in WRONG[sentence].items()}
    with pytest.raises(ValueError, match=sentence):
        rope_kv_write(**good | changed)
    assert (good["pages"] == MARK).all()


def test_slots_beyond_the_pages_are_refused():
    arguments = tensors(4)
    arguments["slots"][2] = 3 * 16
    with pytest.raises(IndexError, match="below 3 pages x 16"):
        rope_kv_write(**arguments)
    assert (arguments["pages"] == MARK).all()
