"""Matrix products against torch's (cuBLAS), and the small kernels against the bytes they move."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.gpu.check import Check
from bench.gpu.timing import Call
from radixserve_kernels.matmul import matmul
from radixserve_kernels.rms_norm import rms_norm
from radixserve_kernels.rope_kv_write import rope_kv_write
from radixserve_kernels.silu_mul import silu_mul

ITEM = 2  # bytes of a bfloat16
EPS = 1e-5


def section(check: Check) -> None:
    for name in check.sizes.model.products:
        check.case("matmul", name, partial(_product, check, name), seconds=6)
    for num_tokens in check.sizes.product_rows:
        case = f"T={num_tokens}"
        for op, call in (
            ("rms_norm", _rms_norm),
            ("silu_mul", _silu_mul),
            ("rope_kv_write", _rope),
        ):
            check.case(op, case, partial(call, check, case, num_tokens))


def _random(check: Check, *size: int) -> Tensor:
    return torch.randn(size, device=check.device, dtype=torch.bfloat16)


def _product(check: Check, name: str) -> None:
    outputs, inputs = check.sizes.model.products[name]
    weight = 0.02 * _random(check, outputs, inputs)
    xs = [_random(check, height, inputs) for height in check.sizes.product_rows]
    check.warm(
        [partial(matmul, x, weight, uniform=uniform) for x in xs for uniform in (True, False)]
    )
    for x in xs:
        height = len(x)
        ways: dict[str, list[Call]] = {
            "torch": [partial(F.linear, x, weight)],
            "ours, by rows": [partial(matmul, x, weight)],
            "ours, uniform": [partial(matmul, x, weight, uniform=True)],
        }
        timings = check.timer.medians(ways)
        nbytes = ITEM * (x.numel() + weight.numel() + height * outputs)
        case = f"{name} {outputs} x {inputs}, T={height}"
        for way, (us, _) in timings.items():
            ratio = f"{us / timings['torch'].us:.2f} of torch's time"
            flops = 2 * height * weight.numel()
            check.timed(way, case, us, nbytes=nbytes, flops=flops, note=ratio)
            check.fact(f"products: {name} T={height}: {way}", us)


def _one(check: Check, name: str, case: str, call: Call, nbytes: int) -> None:
    check.warm([call])
    timing = check.timer.medians({name: [call]})[name]
    check.timed(name, case, timing.us, nbytes=nbytes)


def _rms_norm(check: Check, case: str, num_tokens: int) -> None:
    x, residual = (_random(check, num_tokens, check.sizes.model.hidden) for _ in range(2))
    weight = torch.ones(x.shape[1], device=check.device, dtype=torch.bfloat16)
    call = partial(rms_norm, x, weight, EPS, residual)
    _one(check, "rms_norm, residual", case, call, ITEM * 4 * x.numel())


def _silu_mul(check: Check, case: str, num_tokens: int) -> None:
    x = _random(check, num_tokens, 2 * check.sizes.model.inner)
    _one(check, "silu_mul", case, partial(silu_mul, x), ITEM * (x.numel() + x.numel() // 2))


def _rope(check: Check, case: str, num_tokens: int) -> None:
    model, page_size = check.sizes.model, check.sizes.page_sizes[0]
    q_heads, kv_heads, size = model.heads, model.kv_heads, model.head_dim
    qkv = _random(check, num_tokens, q_heads + 2 * kv_heads, size)
    q, k, v = torch.split(qkv, [q_heads, kv_heads, kv_heads], 1)
    # of length 1, so that rotating again and again keeps the numbers in range
    angle = torch.rand(num_tokens, size // 2, device=check.device)
    turn = torch.polar(torch.ones_like(angle), angle)
    num_pages = num_tokens // page_size + 1
    pages = torch.zeros(
        num_pages, 2, kv_heads, page_size, size, device=check.device, dtype=torch.bfloat16
    )
    keys, values = pages[:, 0].transpose(1, 2), pages[:, 1].transpose(1, 2)
    places = torch.randperm(num_pages * page_size, device=check.device)[:num_tokens].int()
    call = partial(rope_kv_write, q, k, v, turn, keys, values, places)
    read, written = qkv.numel(), q.numel() + 2 * k.numel() + v.numel()
    nbytes = ITEM * (read + written) + turn.numel() * turn.itemsize
    _one(check, "rope_kv_write", case, call, nbytes)
