"""Linear attention: the softmax replaced by a product of positive features."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from attnlab import ops
from attnlab.kernels.prefix import hide, pooled_attention, prefix_attention
from attnlab.mechanisms.heads import Attention, Shared, StateCache
from attnlab.registry import mechanism


def log_features(x: Tensor) -> Tensor:
    """The logarithm of elu(x) + 1, which is x below zero."""
    return torch.where(x > 0, x.clamp_min(0).log1p(), x)


@mechanism("linear", paper="arXiv:2006.16236", cost="n·d²", causal=True, weights="kernel")
class Linear(Attention):
    """Weights are φ(query)·φ(key) with φ = elu + 1, so that keys and values are summed up once for all queries.

    Costs: time and memory grow with the length; generation keeps one matrix a head, however long the text.
    Cannot: put nearly all weight on one token: weights are not sharper than products, and far recall suffers. There is no
    dropout of weights, since no weight is ever formed.
    """

    def __init__(self, n_embd: int, n_head: int, block_size: int, **shared: Unpack[Shared]) -> None:
        shared["dropout"] = 0.0
        super().__init__(n_embd, n_head, block_size, **shared)

    def new_cache(self) -> StateCache:
        """Room for one matrix a head."""
        return StateCache()

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The products of features, brought to a sum of one."""
        return ops.feature_pattern(log_features(q), log_features(k), mask)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """Keys and values summed up first."""
        q, k = log_features(q), hide(log_features(k), padding)
        return prefix_attention(q, k, v)[0] if self.causal else pooled_attention(q, k, v)

    def decode_step(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, cache: StateCache) -> Tensor:
        """The averages for new tokens, the others being summed up."""
        hidden = None if padding is None else padding[:, -k.shape[2] :]
        z, state = prefix_attention(log_features(q), hide(log_features(k), hidden), v, cache.state)
        cache.append(k.shape[2], state)
        return z
