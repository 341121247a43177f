"""Attention with linear biases: scores are reduced in proportion to the distance."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attnlab import ops
from attnlab.mechanisms.heads import Attention, Shared
from attnlab.registry import mechanism


@mechanism("alibi", paper="arXiv:2108.12409", cost="n²·d", causal=True)
class Alibi(Attention):
    """Dot-product attention whose scores fall with the distance, with a different slope in each head.

    The biases encode positions, so rotary positions are not used. In the bidirectional form the bias is the same in both
    directions.

    Costs: as `dot`; the bidirectional form stores the biases of all pairs.
    Cannot: find distant tokens by position: a head sees further only if its slope is smaller.
    """

    slopes: Tensor

    def __init__(self, n_embd: int, n_head: int, block_size: int, **shared: Unpack[Shared]) -> None:
        shared["rotary"] = False
        super().__init__(n_embd, n_head, block_size, **shared)
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, n_head + 1) / n_head), persistent=False)

    def biases(self, asked: int, seen: int) -> Tensor:
        """The bias of every pair, by head."""
        place = torch.arange(seen, device=self.slopes.device)
        distance = (place[seen - asked :, None] - place).abs()
        return -self.slopes[:, None, None] * distance

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scaled products minus the bias."""
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5 + self.biases(q.shape[2], k.shape[2])
        return ops.masked_softmax(scores, mask)

    @ops.in_float32  # positions are coordinates
    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By torch's fused kernel; in the causal form, the bias m·(s - t) is two more coordinates of query and key.

        They come first, so that they cancel before anything small is added: exactly if slopes are powers of two (8, 4, 2
        or 1 heads), else up to the rounding of the largest bias, 1e-4 in a text of 8,192 tokens.
        """
        dropout = self.dropout if self.training else 0.0
        if not self.causal:
            bias = self.biases(q.shape[2], k.shape[2])[None]
            if padding is not None:
                bias = bias.masked_fill(padding[:, None, None, :], float("-inf"))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        place = torch.arange(q.shape[2], dtype=q.dtype, device=q.device)
        charge = (self.slopes[:, None] * place).expand(q.shape[:3])[..., None]
        ones = torch.ones_like(charge)
        wide_q = torch.cat([ones, -charge, q * q.shape[-1] ** -0.5], dim=-1)
        wide_k = torch.cat([charge, ones, k], dim=-1)
        return ops.fused_attention(wide_q, wide_k, v, padding, True, dropout, scale=1.0)
