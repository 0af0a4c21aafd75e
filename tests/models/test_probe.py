"""What the probe makes of masks and calls that no model at hand has."""

from types import SimpleNamespace

import pytest
import torch

from radixserve.models import probe
from radixserve.models.probe import Recorder

LENGTH = 200


def band(window, length=LENGTH):
    query, seen = probe._queries(length, "cpu")[:, None], torch.arange(length)
    return (seen <= query) & (seen > query - window)


@pytest.mark.parametrize(
    ("window", "expected"), [(1, 1), (2, 2), (63, 63), (199, 199), (200, 0), (1000, 0)]
)
def test_the_window_is_read_off_the_mask(window, expected):
    assert probe._window(0, band(window)) == expected


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 100_000])
def test_queries_go_to_the_end(length):
    queries = probe._queries(length, "cpu").tolist()
    assert queries[0] == 0 and queries[-1] == length - 1
    assert len(set(queries)) == len(queries) == min(length, 64)


def chunked(size):
    query, seen = probe._queries(LENGTH, "cpu")[:, None], torch.arange(LENGTH)
    return (seen <= query) & (seen // size == query // size)


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones_like(band(1)),  # in both directions
        chunked(50),
        band(20) | (torch.arange(LENGTH) < 4) & band(LENGTH),  # the first tokens are seen by all
        band(20)[:, :-1],
        band(20)[:-1],
    ],
)
def test_other_masks_are_refused(mask):
    with pytest.raises(ValueError, match="layer 3 does not see all tokens before it, nor"):
        probe._window(3, mask)


def called(*layers, kv_heads=2, **options):
    """A recorder that was called in these layers, with `kv_heads` or as many as is said by layer"""
    recorder = Recorder()
    for layer in layers:
        count = kv_heads if isinstance(kv_heads, int) else kv_heads[layer]
        q, kv = torch.ones(1, 4, 1, 8), torch.ones(1, count, 1, 8)
        recorder(SimpleNamespace(layer_idx=layer), q, kv, kv, None, **options)
    return recorder


def test_layers_come_in_order_and_alike():
    assert len(probe._in_order(called(0, 1, 2), 3)) == 3
    with pytest.raises(ValueError, match=r"in the order \[0, 2, 1\]"):
        probe._in_order(called(0, 2, 1), 3)
    with pytest.raises(ValueError, match=r"layers \[1, 3\] keep something else"):
        probe._in_order(called(0, 2), 4)
    with pytest.raises(ValueError, match=r"differ in .*: \(4, 1, 8, 8\), \(4, 2, 8, 8\)"):
        probe._in_order(called(0, 1, kv_heads=(1, 2)), 2)


def test_what_attention_is_asked_for():
    with pytest.raises(ValueError, match="needs position_bias, sinks, which pages do not serve"):
        called(0, sinks=torch.ones(4), position_bias=1.0, nothing=None, neither=False)
    (call,) = called(0, scaling=0.3, softcap=None, dropout=0.0, sliding_window=9).calls.values()
    assert (call.scale, call.softcap) == (0.3, 0.0)
    with pytest.raises(ValueError, match="do not call attention once each"):
        called(0, 0)


def test_a_scale_that_follows_the_text_is_refused():
    probe._check_independent(called(0), called(0), 0)
    with pytest.raises(ValueError, match="layer 0 computes of a token depends on others"):
        probe._check_independent(called(0), called(0, scaling=0.1), 0)
