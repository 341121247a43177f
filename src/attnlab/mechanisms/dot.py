"""Scaled dot-product attention, the baseline for all others."""

from __future__ import annotations

from torch import Tensor

from attnlab import ops
from attnlab.mechanisms.heads import Attention
from attnlab.registry import mechanism


@mechanism("dot", paper="arXiv:1706.03762", cost="n²·d", causal=True, weights="exact")
class Dot(Attention):
    """Every token takes the average of the values it may see, weighted by the softmax of query·key / √width.

    Costs: time grows with the square of the length; the fused kernel keeps memory linear.
    Cannot: go far beyond a few thousand tokens on a CPU; generation keeps all keys and values in memory.
    """

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scaled products."""
        return ops.attention_pattern(q, k, mask)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By torch's fused kernel, which never forms the pattern."""
        return ops.fused_attention(q, k, v, padding, self.causal, self.dropout if self.training else 0.0)
