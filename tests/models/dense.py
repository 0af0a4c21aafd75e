"""Attention over one request's keys and values kept densely, in the place of the worker's pages."""

import torch
from torch import Tensor
from torch.nn import functional as F

from radixserve.models.rotary import rotate


class DenseAttention:
    """An `attend` for one request: appends each call's keys and values to its layer's."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def __call__(self, layer: int, qk: Tensor, v: Tensor, turn: Tensor) -> Tensor:
        q, k = rotate(qk, turn).tensor_split([-v.shape[1]], 1)
        assert q.is_cpu and k.shape == v.shape and q.shape[::2] == k.shape[::2]
        if layer in self.keys:
            k = torch.cat([self.keys[layer], k])
            v = torch.cat([self.values[layer], v])
        self.keys[layer], self.values[layer] = k, v
        new, total = q.shape[0], k.shape[0]
        causal = torch.ones(new, total, dtype=torch.bool).tril(total - new)
        mixed = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            attn_mask=causal,
            enable_gqa=True,
        )
        return mixed[0].transpose(0, 1)
