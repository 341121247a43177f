"""Sliding-window attention: a token sees only its neighbours."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.kernels.blocks import Layout, block_attention
from attnlab.mechanisms.heads import Attention, KeyValueCache, Shared
from attnlab.registry import mechanism


@mechanism("sliding", paper="arXiv:2004.05150", cost="n·w·d", causal=True, weights="sparse", knobs=("window",))
class Sliding(Attention):
    """Dot-product attention over the last `window` tokens, the token itself included; on both sides when bidirectional.

    Costs: time and memory grow with length times window; generation keeps only the last window.
    Cannot: see further than layers x window.

    Parameters
    ----------
    window
        tokens seen, itself included; on each side when bidirectional. 0: an eighth of the block size, 16 to 128
    """

    def __init__(self, n_embd: int, n_head: int, block_size: int, *, window: int = 0, **shared: Unpack[Shared]) -> None:
        super().__init__(n_embd, n_head, block_size, **shared)
        if window < 0:
            raise ConfigError(f"sliding.window must be at least 1, not {window}")
        self.window = window or min(128, max(16, block_size // 8))
        self.layout: Layout | None = None

    def new_cache(self) -> KeyValueCache:
        """An empty cache of the last window."""
        return KeyValueCache(keep=self.window - 1)

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scaled products within the window."""
        asked, seen = q.shape[2], k.shape[2]
        place = torch.arange(seen, device=q.device)
        distance = place[seen - asked :, None] - place
        near = (distance.abs() < self.window)[None, None]
        return ops.attention_pattern(q, k, near if mask is None else near & mask)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By gathered blocks: each with the blocks that its window overlaps."""
        tokens, dropout = q.shape[2], self.dropout if self.training else 0.0
        if tokens <= self.window:
            return ops.fused_attention(q, k, v, padding, self.causal, dropout)
        if self.layout is None or not self.layout.fits(q):
            self.layout = self.lay_out(tokens, q.device)
        return block_attention(q, k, v, self.layout, padding, dropout)

    def lay_out(self, tokens: int, device: torch.device) -> Layout:
        """Blocks of half a window."""
        block = min(64, max(8, self.window // 2))
        number = torch.arange(-(-tokens // block), device=device)
        apart = number[:, None] - number
        back = (apart * block < self.window + block - 1) & (apart >= 0)
        return Layout.of(back if self.causal else back | back.T, tokens, block, self.causal, self.window)
