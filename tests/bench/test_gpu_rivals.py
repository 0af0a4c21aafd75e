"""Others' attention over our pages: what we tell them of the pages makes them compute the same."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from bench.gpu.check import Check
from tests.bench.gpu_toys import toy_check


@pytest.fixture
def check(tmp_path: Path) -> Check:
    return toy_check(tmp_path)


class Wrapper:
    """FlashInfer's wrappers as far as `rivals` calls them, in plain torch over pages in HND."""

    def __init__(self, workspace: torch.Tensor, layout: str, **_: Any) -> None:
        assert layout == "HND" and workspace.dtype == torch.uint8

    def plan(self, *given: Any, q_data_type: torch.dtype, **_: Any) -> None:
        assert q_data_type == torch.bfloat16
        self.heads, self.kv_heads, _, self.page = given[3:]
        self.q_start = list(range(len(given[0])))
        self.levels = [tuple(x.tolist() for x in given[:3])]

    def run(self, q: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        outputs = []
        for row in range(len(self.q_start) - 1):
            keys, values = (
                torch.cat([self._gathered(pages[:, half], level, row) for level in self.levels], 1)
                for half in range(2)
            )
            own = q[self.q_start[row] : self.q_start[row + 1]].transpose(0, 1).float()
            group = self.heads // self.kv_heads
            keys, values = (x.float().repeat_interleave(group, 0) for x in (keys, values))
            new, length = own.shape[1], keys.shape[1]
            mask = torch.ones(new, length, dtype=torch.bool).tril(length - new)
            found = torch.nn.functional.scaled_dot_product_attention(
                own, keys, values, attn_mask=mask
            )
            outputs.append(found.transpose(0, 1))
        return torch.cat(outputs)

    def _gathered(self, half: torch.Tensor, level: tuple[Any, ...], row: int) -> torch.Tensor:
        starts, indices, lasts = level
        row = min(row, len(lasts) - 1)  # a shared level has one row for all
        own = indices[starts[row] : starts[row + 1]]
        length = (len(own) - 1) * self.page + lasts[row]
        return half[own].transpose(0, 1).flatten(1, 2)[:, :length]


class Prefill(Wrapper):
    def plan(self, q_start: torch.Tensor, *given: Any, causal: bool = False, **rest: Any) -> None:
        assert causal
        super().plan(*given, **rest)
        self.q_start = q_start.tolist()


class Cascade(Wrapper):
    def __init__(self, levels: int, *rest: Any) -> None:
        assert levels == 2
        super().__init__(*rest)

    def plan(
        self, q_starts: Any, starts: Any, indices: Any, lasts: Any, *given: Any, **rest: Any
    ) -> None:
        super().plan(starts[1], indices[1], lasts[1], *given, **rest)
        levels = zip(starts, indices, lasts, strict=True)
        self.levels = [tuple(x.tolist() for x in level) for level in levels]
        assert q_starts[0].tolist() == [0, q_starts[1].tolist()[-1]]


@pytest.mark.parametrize(
    ("request_", "shared", "names"),
    [
        ((1, 40), 0, {"torch SDPA, contiguous", "FlashInfer decode"}),
        ((1, 40), 16, {"torch SDPA, contiguous", "FlashInfer decode", "FlashInfer cascade"}),
        ((5, 40), 0, {"FlashInfer prefill"}),
        ((21, 21), 0, {"torch SDPA, contiguous", "FlashInfer prefill"}),
    ],
)
def test_rivals_compute_the_same(
    request_: tuple[int, int],
    shared: int,
    names: set[str],
    check: Check,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from bench.gpu import rivals
    from bench.gpu.paged import Rows, Shape

    compiled = tmp_path / "data" / "aot" / "page" / "page.so"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    package = ModuleType("flashinfer")
    package.__file__ = str(tmp_path / "__init__.py")
    wrappers = {
        "BatchDecodeWithPagedKVCacheWrapper": Wrapper,
        "BatchPrefillWithPagedKVCacheWrapper": Prefill,
        "MultiLevelCascadeAttentionWrapper": Cascade,
    }
    for name, wrapper in wrappers.items():
        setattr(package, name, wrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    new, length = request_
    shape = Shape(heads=4, kv_heads=2, head_dim=16, page_size=8)
    rows = Rows(shape, [length] * 3, torch.device("cpu"), shared=shared, queries=True)
    requests = [(row, new, length) for row in range(3)]
    expected = rows.expected(requests)
    found = rivals.ready(check, [rows], requests, rows.query(requests), "case")
    assert found.keys() == names, [str(row) for row in check.report.rows]
    for name, (call,) in found.items():
        out = call()
        if name.startswith("torch"):
            out = out.transpose(1, 2).flatten(0, 1)
        error = (out.double() - expected).norm() / expected.norm()
        assert error < 1e-2, name
