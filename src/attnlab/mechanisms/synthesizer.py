"""Synthesizer: weights that do not come from comparing tokens."""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab import ops
from attnlab.mechanisms.heads import Attention, Shared
from attnlab.registry import mechanism

SHORT = 128  # tokens; without a mask, shorter texts are as fast by the pattern


@mechanism("synthesizer", paper="arXiv:2005.00743", cost="n²·d", causal=True)
class Synthesizer(Attention):
    """Every token predicts from itself alone which positions to attend to (dense), or the weights are learned (random).

    Dense: every position has a learned vector in every head, and the scores are its products with the token after a
    hidden layer. Random: the scores are a learned matrix, the same for every text. Queries are not compared with keys, and
    weights depend on positions: rotary positions and normalised keys have no effect.

    Costs: as `dot`; random computes its pattern once for a whole batch. The parameters grow with the block: heads x block x
    width of a head (dense), heads x block² (random).
    Cannot: find a token by content, only by position; read texts longer than its block.

    Parameters
    ----------
    kind
        dense: scores predicted from the token; random: learned scores, the same for all texts
    """

    bounded = True

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        *,
        kind: Literal["dense", "random"] = "dense",
        **shared: Unpack[Shared],
    ) -> None:
        shared["rotary"] = shared["qk_norm"] = False
        # Dense has a projection for the hidden layer and one for values, random one for values only.
        super().__init__(n_embd, n_head, block_size, share="qk" if kind == "dense" else "qkv", **shared)
        self.kind = kind
        width = n_embd // n_head if kind == "dense" else block_size
        self.places = nn.Parameter(0.02 * torch.randn(n_head, block_size, width))

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scores of the positions."""
        asked, seen = q.shape[2], k.shape[2]
        if self.kind == "dense":
            return ops.masked_softmax(F.relu(q) @ self.places[:, :seen].transpose(-2, -1), mask)
        return ops.masked_softmax(self.places[None, :, seen - asked : seen, :seen], mask)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """Dense by torch's fused kernel, with position vectors as keys; random with one pattern for the whole batch."""
        tokens = q.shape[2]
        if not self.causal and tokens <= SHORT:
            return self.reference(q, k, v, padding)
        if self.kind == "dense":
            places = self.places[:, :tokens].expand(q.shape[0], -1, -1, -1)
            dropout = self.dropout if self.training else 0.0
            return ops.fused_attention(F.relu(q), places, v, padding, self.causal, dropout, scale=1.0)
        if padding is not None or (self.training and self.dropout):
            return self.reference(q, k, v, padding)
        pattern = self.pattern(q, k, ops.visible(tokens, tokens, None, self.causal, q.device))[0]
        columns = v.permute(1, 2, 0, 3)
        return (pattern @ columns.flatten(2)).view(columns.shape).permute(2, 0, 1, 3)
