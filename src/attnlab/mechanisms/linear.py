"""Linear attention: the softmax replaced by a product of positive features."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from attnlab import ops
from attnlab.kernels.prefix import hide, pooled_attention, prefix_attention
from attnlab.mechanisms.heads import Attention, Shared, StateCache
from attnlab.registry import mechanism


def _log_features(x: Tensor) -> Tensor:
    """The logarithm of elu(x) + 1, which is x below zero."""
    return torch.where(x > 0, x.clamp_min(0).log1p(), x)


@mechanism("linear", paper="arXiv:2006.16236", cost="n·d²", causal=True, weights="kernel")
class Linear(Attention):
    """Weights are φ(query)·φ(key) with φ = elu + 1, so that keys and values are summed once for all queries.

    Costs: time and memory grow with the length; generation keeps one matrix per head, however long the text.
    Cannot: put nearly all weight on one token: weights are no sharper than products, and distant recall suffers. There is
    no dropout on weights, since they are never computed.
    """

    def __init__(self, n_embd: int, n_head: int, block_size: int, **shared: Unpack[Shared]) -> None:
        shared["dropout"] = 0.0
        super().__init__(n_embd, n_head, block_size, **shared)

    def new_cache(self) -> StateCache:
        """An empty cache of one matrix per head."""
        return StateCache()

    @ops.in_float32
    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The products of features, normalised to a sum of one."""
        return ops.feature_pattern(_log_features(q), _log_features(k), mask)

    @ops.in_float32
    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """The same by summing keys and values first."""
        q, k = _log_features(q), hide(_log_features(k), padding)
        return prefix_attention(q, k, v)[0] if self.causal else pooled_attention(q, k, v)

    @ops.in_float32
    def decode_step(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, cache: StateCache) -> Tensor:
        """The averages for new tokens; earlier ones are in the sums."""
        hidden = None if padding is None else padding[:, -k.shape[2] :]
        z, state = prefix_attention(_log_features(q), hide(_log_features(k), hidden), v, cache.state)
        cache.append(k.shape[2], state)
        return z
