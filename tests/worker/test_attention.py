"""Every attention backend against the reference, on steps that mix prefill, extend and decode.

Pages that no row of the step owns, and what lies past each row's end, hold NaN.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.messages import Row, pack
from radixserve.models.rotary import rotary_table, rotation
from radixserve.models.spec import Rope
from radixserve.worker.attention import BACKENDS, Setting
from radixserve.worker.attention.torch_paged import group_similar
from radixserve.worker.batch import bring, gather_rows
from radixserve.worker.kv_cache import KVCache
from radixserve.worker.slots import Slots
from radixserve_kernels import reference
from radixserve_kernels.attention_options import Options

HEAD_DIM = 16
NUM_PAGES = 64
CPU = torch.device("cpu")
PLAIN = Options(0.3)
backends = pytest.mark.parametrize("backend", BACKENDS)


class Case:
    """Random K/V for rows of (tokens computed before, new tokens), one layer deep."""

    def __init__(
        self, rows: list[tuple[int, int]], *, heads=(4, 2), page_size=8, consecutive=False, seed=0
    ) -> None:
        random = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        self.q_heads, self.kv_heads = heads
        self.cache = KVCache(
            num_layers=2,
            num_pages=NUM_PAGES,
            page_size=page_size,
            num_kv_heads=self.kv_heads,
            head_dim=HEAD_DIM,
            dtype=torch.float32,
            device=CPU,
        )
        for pages in self.cache.pages:
            pages.fill_(float("nan"))
        free = list(range(NUM_PAGES)) if consecutive else random.permutation(NUM_PAGES).tolist()
        slots = Slots(len(rows) + 1, NUM_PAGES, CPU)
        self.rows = []
        for slot, (start, new) in enumerate(rows, 1):
            count = -(-(start + new) // page_size)
            pages, free = free[:count], free[count:]
            slots.admit(slot)
            row = Row(slot, start, pack([0] * new), pack(pages), sample=slot % 3 > 0)
            slots.append_pages([row])
            self.rows.append(row)
            self._fill(pages, start, generator)
        last = torch.zeros(len(rows) + 1, dtype=torch.int32)
        self.host = gather_rows(self.rows, slots, page_size=page_size)
        self.batch = bring(self.host, last, slots.device_table)
        self.tokens = len(self.batch.tokens)
        qkv = torch.randn(
            self.tokens, self.q_heads + 2 * self.kv_heads, HEAD_DIM, generator=generator
        )
        self.qkv = qkv
        table = rotary_table(Rope(), HEAD_DIM, int(self.batch.positions.max()) + 1)
        self.turn = rotation(table, self.batch.positions)

    def _fill(self, pages: list[int], start: int, generator: torch.Generator) -> None:
        """K/V of the first `start` tokens, as earlier steps would have left it."""
        for page in self.cache.pages:
            kv = torch.randn(2, self.kv_heads, start, HEAD_DIM, generator=generator)
            for i, piece in enumerate(kv.split(self.cache.page_size, 2)):
                page[pages[i], :, :, : piece.shape[2]] = piece

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """qk, which a backend may overwrite, and v: strided, as the decoder's are."""
        qk, v = self.qkv.clone().split((self.q_heads + self.kv_heads, self.kv_heads), 1)
        return qk, v

    def expected(self, layer: int, options: Options, *, rotated: bool) -> torch.Tensor:
        keys, values = self.cache.key(layer).clone(), self.cache.value(layer).clone()
        qk, v = self.inputs()
        q, k = qk.split((self.q_heads, self.kv_heads), 1)
        slots, turn = self.batch.write_slots, self.turn.squeeze(1)
        if rotated:
            reference.kv_write(k, v, keys, values, slots)
        else:
            reference.rope_kv_write(q, k, v, turn, keys, values, slots)
        return reference.paged_attention(
            q,
            keys,
            values,
            self.batch.page_table,
            self.batch.positions,
            self.batch.token_slot,
            options,
        )

    def check(
        self, backend: str, options: tuple[Options, Options] = (PLAIN, PLAIN), *, rotated=False
    ) -> None:
        """`options` of the two layers; `rotated`: queries and keys are taken as they are."""
        setting = Setting(
            self.cache, torch.float32, self.host.page_table, self.q_heads, options=options
        )
        attend = BACKENDS[backend](setting).plan(self.host).bind(self.batch)
        for layer in (1, 0):
            expected = self.expected(layer, options[layer], rotated=rotated)
            got = attend(layer, *self.inputs(), None if rotated else self.turn)
            assert got.isfinite().all()
            if layer == 1:  # the last one, of which only what is sampled matters
                got, expected = got[self.batch.wanted], expected[self.batch.wanted]
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@backends
@pytest.mark.parametrize("consecutive", [False, True])
@pytest.mark.parametrize(
    "rows",
    [
        [(0, 1)],
        [(13, 1)],
        [(0, 19)],
        [(16, 3)],
        [(31, 1), (30, 1), (24, 1), (33, 1)],
        [(90, 1), (2, 1), (85, 1), (7, 1), (0, 1)],
        [(15, 1), (0, 8), (16, 1), (5, 9), (0, 2), (40, 1)],
    ],
    ids=str,
)
def test_rows(backend, rows, consecutive):
    Case(rows, consecutive=consecutive).check(backend)


@backends
@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_query_heads_per_kv_head(backend, group):
    Case([(9, 1), (12, 1), (7, 4)], heads=(2 * group, 2)).check(backend)


@backends
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_page_sizes(backend, page_size):
    Case([(7, 1), (6, 3), (0, 5)], page_size=page_size).check(backend)


@backends
@pytest.mark.parametrize(
    "options",
    [
        (Options(0.3, window=9), PLAIN),
        (PLAIN, Options(0.2, window=8)),
        (Options(0.3, window=1), Options(0.1, window=17)),
        (Options(0.4, softcap=1.5), Options(0.3, softcap=0.5, window=12)),
    ],
    ids=str,
)
def test_each_layer_has_its_own_options(backend, options):
    Case([(15, 1), (0, 8), (33, 1), (20, 9), (0, 2), (40, 1), (0, 19)]).check(backend, options)


@backends
def test_rotated_queries_and_keys_are_taken_as_they_are(backend):
    Case([(15, 1), (0, 8), (5, 9)]).check(backend, rotated=True)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from([1, 1, 1, 2, 7, 8, 9])),
        min_size=1,
        max_size=7,
    ),
    consecutive=st.booleans(),
    windows=st.tuples(*[st.sampled_from([0, 0, 1, 5, 8, 24, 60])] * 2),
)
@settings(max_examples=60, deadline=None)
def test_torch_backend_on_any_step(rows, consecutive, windows):
    options = tuple(Options(0.3, window=window) for window in windows)
    Case(rows, consecutive=consecutive).check("torch", options)


def test_small_groups_when_little_fits(monkeypatch):
    case = Case([(31, 1), (30, 1), (24, 1), (33, 1), (29, 1)])
    page_bytes = case.cache.pages[0][0].nbytes
    monkeypatch.setattr("radixserve.worker.attention.torch_paged.GROUP_BYTES", 9 * page_bytes)
    case.check("torch")


def test_blocks_of_a_long_row(monkeypatch):
    monkeypatch.setattr("radixserve.worker.attention.torch_paged.BLOCK_TOKENS", 7)
    case = Case([(9, 20), (0, 20), (16, 8), (3, 14)])
    case.check("torch")
    case.check("torch", (Options(0.3, window=10), Options(0.3, softcap=1.0)))


@given(
    num_pages=st.lists(st.integers(1, 50), max_size=30),
    most=st.integers(1, 200),
)
def test_groups_hold_each_row_once_and_waste_little(num_pages, most):
    groups = group_similar(num_pages, most)
    assert sorted(index for group in groups for index in group) == list(range(len(num_pages)))
    for group in groups:
        longest = max(num_pages[index] for index in group)
        assert len(group) == 1 or len(group) * longest <= most
        assert min(num_pages[index] for index in group) >= 0.75 * longest
