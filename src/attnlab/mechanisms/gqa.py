"""Grouped-query attention: several query heads read the same keys and values."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.mechanisms.heads import Attention, Shared
from attnlab.registry import mechanism


@mechanism("gqa", paper="arXiv:2305.13245", cost="n²·d", causal=True, weights="exact")
class GroupedQuery(Attention):
    """Dot-product attention in which groups of query heads share one head of keys and values.

    With one group it is multi-query attention (arXiv:1911.02150), with as many as heads it is `dot`.

    Costs: time as `dot`; the cache of keys and values shrinks by the size of a group.
    Cannot: fetch different values from one token with the heads of a group; it saves memory, not training time.

    Parameters
    ----------
    groups
        heads of keys and values; 0: a quarter of the heads, at least one
    """

    def __init__(self, n_embd: int, n_head: int, block_size: int, *, groups: int = 0, **shared: Unpack[Shared]) -> None:
        groups = groups or max(1, n_head // 4)
        if groups < 0 or n_head % groups:
            raise ConfigError(f"gqa needs groups that divide the {n_head} heads, not {groups}")
        super().__init__(n_embd, n_head, block_size, kv_heads=groups, **shared)

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scaled products."""
        return ops.attention_pattern(q, k, mask)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By torch's fused kernel, which never forms the pattern."""
        return ops.fused_attention(q, k, v, padding, self.causal, self.dropout if self.training else 0.0)
