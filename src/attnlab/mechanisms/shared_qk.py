"""Dot-product attention whose queries and keys are the same vectors."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from attnlab import ops
from attnlab.mechanisms.heads import Attention, Shared
from attnlab.registry import mechanism


@mechanism("shared_qk", paper="arXiv:2001.04451", cost="n²·d", causal=True, weights="exact")
class SharedQK(Attention):
    """Dot-product attention with one projection for queries and keys.

    Costs: as `dot`, with a quarter fewer parameters in attention.
    Cannot: attend in one direction only: the score of a pair is the same both ways, and a token's own score is its squared
    length, so that it tends to attend to itself.
    """

    def __init__(self, n_embd: int, n_head: int, block_size: int, **shared: Unpack[Shared]) -> None:
        super().__init__(n_embd, n_head, block_size, share="qk", **shared)

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scaled products."""
        return ops.attention_pattern(q, k, mask)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By torch's fused kernel, which never forms the pattern."""
        return ops.fused_attention(q, k, v, padding, self.causal, self.dropout if self.training else 0.0)
