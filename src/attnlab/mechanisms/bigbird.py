"""BigBird: blocks see a few global blocks, their neighbours, and some blocks at random."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Bool
from torch import Tensor

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.kernels.blocks import Layout, block_attention
from attnlab.mechanisms.heads import Attention, Shared
from attnlab.registry import mechanism


@mechanism(
    "bigbird",
    paper="arXiv:2007.14062",
    cost="n·b·(g+w+r)·d",
    causal=True,
    weights="sparse",
    knobs=("window_blocks", "random_blocks"),
)
class BigBird(Attention):
    """Dot-product attention over few blocks: the first ones (global), the neighbours (window), and random ones.

    Global blocks see everything and are seen by all, as far as causality allows. The random blocks are drawn once, when
    the layer is created, and saved with it: training, evaluation and a loaded model use the same tokens. With global tokens
    it can approximate any function of sequences, and is Turing complete (theorems of the paper). Texts may have any length.

    Costs: time and memory grow with length times tokens seen, by default 8 blocks.
    Cannot: compare every pair in one layer: a token outside the pattern is reached over several layers, or not at all.

    Parameters
    ----------
    block
        tokens per block; 0: a sixteenth of the block size, as a power of two from 4 to 64
    window_blocks
        neighbouring blocks seen, itself included: the last ones when causal, else to both sides (an odd number)
    random_blocks
        further blocks drawn at random
    global_blocks
        blocks at the beginning that all blocks see
    """

    bounded = True
    drawn: Tensor

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        *,
        block: int = 0,
        window_blocks: int = 3,
        random_blocks: int = 3,
        global_blocks: int = 2,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(n_embd, n_head, block_size, **shared)
        if block < 0 or window_blocks < 1 or random_blocks < 0 or global_blocks < 0:
            raise ConfigError("bigbird needs window_blocks of at least 1, and no other option below 0")
        if not self.causal and window_blocks % 2 == 0:
            raise ConfigError(f"bigbird.window_blocks counts both sides and itself: make it odd, not {window_blocks}")
        self.block = block or 2 ** min(6, max(2, (block_size // 16).bit_length() - 1))
        self.window_blocks, self.global_blocks = window_blocks, global_blocks
        self.layout: Layout | None = None
        self.laid_out = -1  # version of the random blocks: loading weights changes it
        self.register_buffer("drawn", self.draw(-(-block_size // self.block), random_blocks))

    def fixed(self, blocks: int, device: torch.device | None = None) -> Bool[Tensor, "N N"]:
        """The visible pairs of blocks without the random ones."""
        number = torch.arange(blocks, device=device)
        apart = number[:, None] - number
        if self.causal:
            return ((apart < self.window_blocks) | (number < self.global_blocks)) & (apart >= 0)
        return (
            (2 * apart.abs() < self.window_blocks)
            | (number < self.global_blocks)
            | (number < self.global_blocks)[:, None]
        )

    def draw(self, blocks: int, random: int) -> Bool[Tensor, "N N"]:
        """For every block, random blocks among those it may see and does not see yet."""
        number = torch.arange(blocks)
        free = ~self.fixed(blocks) & ((number[:, None] > number) if self.causal else torch.tensor(True))
        luck = torch.rand(blocks, blocks).masked_fill(~free, 2.0)
        return (luck.argsort(-1).argsort(-1) < random) & free

    def allowed(self, tokens: int) -> Bool[Tensor, "N N"]:
        """The visible pairs of blocks of a text."""
        blocks = -(-tokens // self.block)
        return self.fixed(blocks, self.drawn.device) | self.drawn[:blocks, :blocks]

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scaled products over the visible blocks."""
        asked, seen = q.shape[2], k.shape[2]
        number = torch.arange(seen, device=q.device) // self.block
        meet = self.allowed(seen)[number[seen - asked :, None], number][None, None]
        return ops.attention_pattern(q, k, meet if mask is None else meet & mask)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By gathered blocks; global queries separately, since they see everything."""
        tokens, dropout = q.shape[2], self.dropout if self.training else 0.0
        if self.layout is None or not self.layout.fits(q) or self.laid_out != self.drawn._version:
            self.layout, self.laid_out = self.lay_out(tokens), self.drawn._version
        first = 0 if self.causal else min(tokens, self.global_blocks * self.block)
        z = block_attention(q, k, v, self.layout, padding, dropout)
        if first:
            whole = ops.fused_attention(q[:, :, :first], k, v, padding, False, dropout)
            z = torch.cat([whole, z[:, :, first:]], dim=2)
        return z

    def lay_out(self, tokens: int) -> Layout:
        """The blocks that every block gathers; global rows are computed separately, and see only themselves here."""
        allowed = self.allowed(tokens)
        if not self.causal:
            allowed[: self.global_blocks] = torch.eye(len(allowed), dtype=torch.bool).to(allowed)[: self.global_blocks]
        return Layout.of(allowed, tokens, self.block, self.causal)
