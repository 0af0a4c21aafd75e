"""Packed products against float64, and bit for bit: kinds, rows, threads, bodies, memory around."""

import pytest
import torch

from radixserve_kernels import cpu, reference
from radixserve_kernels.cpu import PackedLinear
from tests.kernels.cpu.packed_weights import BLOCKS, KINDS, rows, weights

ROUNDING = 2.0**-24
# outputs, inputs: fewer than a panel, whole panels, one more, several parts of inputs
SIZES = [(1, 32), (15, 64), (16, 96), (17, 544), (100, 1088), (192, 576)]
ODD_SIZES = [(1, 1), (3, 7), (33, 100), (65, 1023)]  # for kinds without blocks
kinds = pytest.mark.parametrize("kind", KINDS)
CASES = [(kind, *size) for kind in KINDS for size in SIZES]
CASES += [(kind, *size) for kind in ("F32", "BF16") for size in ODD_SIZES]


def assert_close(out: torch.Tensor, x: torch.Tensor, plain: torch.Tensor) -> None:
    """Within what a chain of roundings may be off by, and much less on the average."""
    expected = reference.matmul(x.double(), plain)
    limit = (x.double().abs() @ plain.double().abs().T) * ROUNDING
    error = (out.double() - expected).abs() / limit.clamp(min=1e-30)
    assert not out.isnan().any()
    assert error.max() <= plain.shape[1] and error.mean() <= 4


@pytest.mark.parametrize("kind, outputs, inputs", CASES)
def test_sizes(kind, outputs, inputs, body):
    packed, plain = weights(kind, outputs, inputs)
    assert packed.kind == kind
    for count in (1, 4, 8, 11, 130):
        x = rows(count, inputs)
        out = packed(x)
        assert out.shape == (count, outputs) and out.is_contiguous()
        assert_close(out, x, plain)


@kinds
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_depend_on_the_row_alone(kind, threads, body):
    """Whatever the number of rows and the row it is, and however many threads there are."""
    packed, _ = weights(kind, 150, 1056)
    x = rows(512, 1056)
    together = packed(x)
    cpu.set_threads(threads)
    for count in (1, 2, 3, 5, 6, 7, 8, 11, 12, 13, 50, 512):
        for first in sorted({0, 1, 77, 300, 512 - count}):
            part = x[first : first + count]
            assert torch.equal(packed(part), together[first : first + count])


@kinds
@pytest.mark.parametrize("gate_up", [False, True])
def test_the_vector_bodies_agree_to_the_last_bit(kind, gate_up, vector_bodies):
    packed, _ = weights(kind, 90, 576, torch.randn(90), gate_up)
    for count in (1, 9, 200):
        x = rows(count, 576)
        found = []
        for body in vector_bodies:
            cpu.load(body)
            found.append(packed(x))
        assert torch.equal(*found)


@pytest.mark.parametrize("kind", ["BF16", *BLOCKS])
def test_other_kinds_have_the_bits_of_float32(kind, body):
    packed, plain = weights(kind, 70, 1088)
    plain[0, 0] = 1 + 2.0**-20  # so that it isn't packed as bfloat16; out[:, 0] differs
    whole = PackedLinear.pack(plain)
    assert whole.kind == "F32" and packed.nbytes < whole.nbytes
    for count in (1, 2, 3, 5, 8, 150):
        x = rows(count, 1088)
        assert torch.equal(packed(x)[:, 1:], whole(x)[:, 1:])


def test_float32_that_is_bfloat16_takes_half_the_bytes():
    plain = torch.randn(40, 64).bfloat16().float()
    packed = PackedLinear.pack(plain)
    assert packed.kind == "BF16" and packed.nbytes == 48 * 64 * 2
    x = rows(20, 64)
    assert torch.equal(packed(x), PackedLinear.pack(plain.bfloat16())(x))
    plain[39, 63] += 1e-6
    assert PackedLinear.pack(plain).kind == "F32"


@kinds
@pytest.mark.parametrize("count", [3, 150])
def test_bias_and_residual(kind, count, body):
    bias = torch.randn(50)
    packed, plain = weights(kind, 50, 96, bias)
    without = weights(kind, 50, 96).packed
    x = rows(count, 96)
    out = packed(x)
    assert torch.equal(out, without(x) + bias)
    assert_close(out - bias, x, plain)
    residual = rows(count, 50, seed=1)
    expected = residual + out
    assert packed(x, residual=residual) is residual
    assert torch.equal(residual, expected)


@kinds
@pytest.mark.parametrize("half", [5, 16, 72])
@pytest.mark.parametrize("count", [1, 7, 130])
def test_gate_and_up(kind, half, count, body):
    bias = torch.randn(2 * half)
    packed, plain = weights(kind, 2 * half, 544, bias, gate_up=True)
    x = rows(count, 544)
    out = packed(x)
    expected = reference.silu_mul(reference.matmul(x.double(), plain, bias))
    assert out.shape == (count, half)
    scale = (x.double().norm(dim=1)[:, None] * plain.double().norm(dim=1).max()).square()
    assert ((out - expected).abs() / scale).max() < 1e-6
    products = weights(kind, 2 * half, 544, bias).packed(x)  # the same bits before the silu
    torch.testing.assert_close(out, reference.silu_mul(products), rtol=1e-6, atol=1e-36)


def test_silu_everywhere(body):
    """gate = x, up = 1: against float64 from where nothing is left to where all is."""
    bias = torch.tensor([0.0, 1.0])
    packed = PackedLinear.pack(torch.tensor([[1.0], [0.0]]), bias, gate_up=True)
    x = torch.cat([torch.linspace(-87, 120, 20001), torch.linspace(-1, 1, 2001)])[:, None]
    expected = x.double() * x.double().sigmoid()
    torch.testing.assert_close(packed(x).double(), expected, rtol=4e-7, atol=0)
    far = torch.tensor([[-88.0], [-100.0], [-1e30], [3e38], [float("nan")]])
    expected = torch.tensor([[0.0], [0.0], [0.0], [3e38], [float("nan")]])
    torch.testing.assert_close(packed(far), expected, rtol=0, atol=1e-36, equal_nan=True)


@kinds
@pytest.mark.parametrize("count", [2, 140])
def test_memory_around_the_result_is_left_alone(kind, count, body):
    packed, _ = weights(kind, 37, 64)
    x = rows(count, 64)
    memory = torch.full((count + 2, 37 + 11), 7.0)
    out = memory[1:-1, 5:42]
    assert packed(x, out) is out
    assert torch.equal(out, packed(x))
    out.fill_(7.0)
    assert torch.equal(memory, torch.full_like(memory, 7.0))


@kinds
def test_rows_of_the_weights(kind):
    packed, plain = weights(kind, 45, 96)
    wanted = torch.tensor([44, 0, 16, 15, 16])
    assert torch.equal(packed.rows(wanted), plain[wanted])
    assert packed.rows(wanted[:0]).shape == (0, 96)
    every_other = torch.arange(45)[::2]
    assert torch.equal(packed.rows(every_other), plain[::2])


def test_packing_has_the_same_result_with_threads():
    cpu.set_threads(3)
    with_threads = weights("Q4_1", 300, 64).packed
    cpu.set_threads(1)
    assert torch.equal(with_threads.panels, weights("Q4_1", 300, 64).packed.panels)


def test_nothing_to_do():
    assert weights("F32", 20, 8).packed(torch.empty(0, 8)).shape == (0, 20)


BAD_WEIGHTS = {
    "weight must be .outputs, inputs.": lambda: PackedLinear.pack(torch.zeros(4)),
    "is .4, 4. of torch.float16": lambda: PackedLinear.pack(torch.zeros(4, 4).half()),
    "weight must be on the CPU": lambda: PackedLinear.pack(torch.zeros(4, 3, device="meta")),
    "weight .* its last stride 1": lambda: PackedLinear.pack(torch.zeros(4, 3).t()),
    "at least one input": lambda: PackedLinear.pack(torch.zeros(0, 3)),
    "pairs of gate and up": lambda: PackedLinear.pack(torch.zeros(5, 3), gate_up=True),
    "bias must be .4.": lambda: PackedLinear.pack(torch.zeros(4, 3), torch.zeros(3)),
    "of torch.float64": lambda: PackedLinear.pack(torch.zeros(4, 3), torch.zeros(4).double()),
    "kind must be one of": lambda: PackedLinear.pack_blocks(torch.zeros(4, 18).byte(), "Q5_0"),
    "blocks of Q4_0 must be": lambda: PackedLinear.pack_blocks(torch.zeros(4, 20).byte(), "Q4_0"),
    "blocks . 34.": lambda: PackedLinear.pack_blocks(torch.zeros(4, 34), "Q8_0"),
    "blocks .* their last stride 1": lambda: PackedLinear.pack_blocks(
        torch.zeros(18, 4).byte().t(), "Q4_0"
    ),
}
BAD_CALLS = {
    "x must be .T, 8.": lambda w: w(torch.zeros(3, 9)),
    "x must be .T, 8. float32": lambda w: w(torch.zeros(3, 8).double()),
    "x must be on the CPU, its last stride 1": lambda w: w(torch.zeros(8, 3).t()),
    "the result must be .T, 4.": lambda w: w(torch.zeros(3, 8), torch.zeros(3, 5)),
    "the result must have 3 rows": lambda w: w(torch.zeros(3, 8), torch.zeros(2, 4)),
    "neither with out": lambda w: w(
        torch.zeros(3, 8), torch.zeros(3, 4), residual=torch.zeros(3, 4)
    ),
    "indices must be .n. int64": lambda w: w.rows(torch.tensor([1], dtype=torch.int32)),
    "from 0 to 3": lambda w: w.rows(torch.tensor([0, 4])),
    "indices must be from": lambda w: w.rows(torch.tensor([-1])),
}


@pytest.mark.parametrize("sentence", BAD_WEIGHTS)
def test_wrong_weights_are_refused(sentence):
    with pytest.raises(ValueError, match=sentence):
        BAD_WEIGHTS[sentence]()


@pytest.mark.parametrize("sentence", BAD_CALLS)
def test_wrong_calls_are_refused(sentence):
    with pytest.raises(ValueError, match=sentence):
        BAD_CALLS[sentence](PackedLinear.pack(torch.randn(4, 8)))


def test_gate_and_up_have_neither_rows_nor_residual():
    packed = PackedLinear.pack(torch.randn(4, 8), gate_up=True)
    with pytest.raises(ValueError, match="packed in order"):
        packed.rows(torch.tensor([0]))
    with pytest.raises(ValueError, match="nor with gate_up"):
        packed(torch.zeros(3, 8), residual=torch.zeros(3, 2))
