"""What the device can do at most: copies, matrix products, launches. All shares are of these."""

import torch

from bench.gpu.check import Check
from radixserve_kernels.silu_mul import silu_mul

SPAN = 200  # replays back to back


def section(check: Check) -> None:
    check.case("copy", "", lambda: _copy(check))
    check.case("matrix product", "", lambda: _product(check))
    check.case("launch", "", lambda: _launch(check))


def _copy(check: Check) -> None:
    source = torch.empty(check.sizes.copy_bytes, dtype=torch.uint8, device=check.device)
    source.random_()
    target = torch.empty_like(source)
    us = check.timer.medians({"copy": [lambda: target.copy_(source)]})["copy"].us
    check.fact("copy_gbs", 2 * source.numel() / us / 1e3)
    check.timed("device copy, read + written", f"{source.numel()} B", us, nbytes=2 * source.numel())


def _product(check: Check) -> None:
    size = check.sizes.square
    a = torch.randn(size, size, device=check.device, dtype=torch.bfloat16)
    b = torch.randn_like(a)
    us = check.timer.medians({"product": [lambda: a @ b]})["product"].us
    check.fact("peak_tflops", 2 * size**3 / us / 1e6)
    check.timed("bf16 product", f"{size}^3", us, flops=2 * size**3)


def _launch(check: Check) -> None:
    """Of a graph with one kernel that does nothing to speak of."""
    one = torch.zeros(1, device=check.device)
    us = check.timer.medians({"graph": [lambda: one.zero_()]})["graph"].us
    check.fact("graph_us", us)
    check.timed("graph of one tiny kernel, event to event", "", us)
    check.timed("tiny kernels launched one by one", "", check.timer.span(one.zero_, SPAN))
    both = torch.zeros(1, 16, device=check.device)
    us = check.timer.span(lambda: silu_mul(both), SPAN)
    check.timed("tiny Triton kernels launched one by one", "", us)
