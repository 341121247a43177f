"""Forgetting attention: gates of the tokens between a query and a key lower its score."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab import ops
from attnlab.mechanisms.heads import Attention, Shared
from attnlab.registry import mechanism


@mechanism("fox", paper="arXiv:2503.02130", cost="n²·d", causal=True)
class Forgetting(Attention):
    """Dot-product attention in which every token multiplies, per head, the weights of all earlier ones by its gate.

    A gate is a sigmoid of the token. Biases begin so that heads forget within 10 to 1,000 tokens. In the bidirectional form
    the gates between two tokens count in both directions, that of the later one included.

    Costs: as `dot`; the cache has one more number per token and head. The bidirectional form computes scores in slices, and
    once more in the backward pass.
    Cannot: recall from beyond what was forgotten: a low gate hides everything before it from all later tokens.
    """

    reads_input = True

    def __init__(self, n_embd: int, n_head: int, block_size: int, **shared: Unpack[Shared]) -> None:
        super().__init__(n_embd, n_head, block_size, **shared)
        self.gate = nn.Linear(n_embd, n_head, bias=False)
        spans = torch.linspace(math.log(10), math.log(1000), n_head).exp()
        self.gate_bias = nn.Parameter((spans - 1).log())  # a gate of 1 - 1 / span

    def project(self, x: Tensor, start: int) -> list[Tensor]:
        """Queries, keys with the logarithms of their gates, and values."""
        q, k, v = super().project(x, start)
        gates = F.logsigmoid(ops.single(self.gate(x)) + self.gate_bias)
        return [q, torch.cat([k, gates.transpose(1, 2)[..., None]], dim=-1), v]

    def dispatch(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """The averages; padding forgets nothing."""
        if padding is not None:
            k = torch.cat([k[..., :-1], ops.blank(k[..., -1:], padding)], dim=-1)
        return super().dispatch(q, k, v, padding)

    def summed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys, each followed by the sum of the logarithms of all gates up to its token."""
        sums = k[..., -1:].cumsum(2)
        return torch.cat([q, sums[:, :, -q.shape[2] :]], dim=-1), torch.cat([k[..., :-1], sums], dim=-1)

    @ops.in_float32  # sums over a text
    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scaled products plus the logarithms of all gates in between."""
        return self.weights(*self.summed(q, k), mask)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The same from queries and keys with their sums."""
        forgotten = (q[..., -1:] - k[..., -1:].mT).abs()
        return ops.masked_softmax(ops.dot_scores(q[..., :-1], k[..., :-1]) - forgotten, mask)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The averages for some of the queries."""
        return self.averages(self.weights(q, k, mask), v)

    @ops.in_float32
    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By torch's fused kernel; the sum of the gates up to a token is two more channels of query and key.

        They come first, so that they cancel before anything small is added.
        """
        scale = q.shape[-1] ** -0.5
        q, k = self.summed(q, k)
        if not self.causal:
            return ops.attend_in_slices(self.attend, q, k, v, padding, False)
        sums = k[..., -1:]
        ones = torch.ones_like(sums)
        wide_q = torch.cat([ones, sums, q[..., :-1] * scale], dim=-1)
        wide_k = torch.cat([-sums, ones, k[..., :-1]], dim=-1)
        dropout = self.dropout if self.training else 0.0
        return ops.fused_attention(wide_q, wide_k, v, padding, True, dropout, scale=1.0)
