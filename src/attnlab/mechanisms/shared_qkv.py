"""Dot-product attention whose queries, keys and values are the same vectors."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from attnlab import ops
from attnlab.mechanisms.heads import Attention, Shared
from attnlab.registry import mechanism


@mechanism("shared_qkv", cost="n²·d", causal=True, weights="exact")
class SharedQKV(Attention):
    """Dot-product attention with one projection for queries, keys and values.

    Rotary positions and normalisation, if the backbone has them, change queries and keys only.

    Costs: as `dot`, with half the parameters in attention.
    Cannot: match by one property and fetch another: the vector that is matched is the vector that is fetched.
    """

    def __init__(self, n_embd: int, n_head: int, block_size: int, **shared: Unpack[Shared]) -> None:
        super().__init__(n_embd, n_head, block_size, share="qkv", **shared)

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scaled products."""
        return ops.attention_pattern(q, k, mask)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By torch's fused kernel, which never forms the pattern."""
        return ops.fused_attention(q, k, v, padding, self.causal, self.dropout if self.training else 0.0)
