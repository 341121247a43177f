"""Additive attention, the first attention mechanism: a small network scores every pair of query and key."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from attnlab.errors import ConfigError
from attnlab.kernels.additive import additive_attention
from attnlab.mechanisms.heads import Attention, Shared
from attnlab.ops import masked_softmax
from attnlab.registry import mechanism


@mechanism("additive", paper="arXiv:1409.0473", cost="n²·d", causal=True)
class Additive(Attention):
    """Every token takes the average of the values it may see, weighted by the softmax of w2·tanh(W1 [query; key]).

    The heads share the small network. W1 is split into its halves for query and key, which are multiplied once per token; a
    pair costs a sum and a tanh per channel.

    Costs: time grows with the square of the length, memory with the length. Compiled (on first use, if there is a C++
    compiler) it is faster than dot-product attention written out; in plain torch about ten times slower.
    Cannot: use matrix multiplication for its scores; be differentiated twice.

    Parameters
    ----------
    hidden
        channels of the small network; 0 for the width of a head
    """

    def __init__(self, n_embd: int, n_head: int, block_size: int, *, hidden: int = 0, **shared: Unpack[Shared]) -> None:
        super().__init__(n_embd, n_head, block_size, **shared)
        if hidden < 0:
            raise ConfigError(f"mechanism additive: hidden must not be negative, but is {hidden}")
        width = n_embd // n_head
        self.W1 = nn.Linear(2 * width, hidden or width, bias=shared.get("bias", False))
        self.w2 = nn.Linear(hidden or width, 1, bias=False)

    def halves(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """W1 [query; key] as a sum: the part of the query, with the bias, and the part of the key."""
        for_query, for_key = self.W1.weight.chunk(2, dim=1)
        return nn.functional.linear(q, for_query, self.W1.bias), nn.functional.linear(k, for_key)

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the small network's scores."""
        a, b = self.halves(q, k)
        scores = self.w2(torch.tanh(a[:, :, :, None] + b[:, :, None])).squeeze(-1)
        return masked_softmax(scores, mask)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """The same without storing the pairs."""
        a, b = self.halves(q, k)
        dropout = self.dropout if self.training else 0.0
        return additive_attention(a, b, self.w2.weight[0], v, padding, self.causal, dropout)
