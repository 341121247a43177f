"""Linformer: keys and values projected along the text to a few rows."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.kernels.blocks import cut, summary_attention
from attnlab.mechanisms.heads import Attention, Shared
from attnlab.registry import mechanism


@mechanism("linformer", paper="arXiv:2006.04768", cost="n·k·d", causal=True, weights="low rank", knobs=("rank",))
class Linformer(Attention):
    """Dot-product attention over `rank` rows, learned mixtures of all keys and of all values.

    It relies on patterns of nearly low rank: the paper needs rows in proportion to width / error², whatever the length.

    The paper's form sees everything and cannot be causal. The causal form works in blocks: a token sees the tokens of its
    own block up to itself, and `rank` rows that mix everything before the block, divided by the root of its length. The
    pattern shows the weight of each token's value through the rows; it may be negative.

    Costs: time and memory grow with length times rank; the parameters with rank times block size.
    Cannot: pick out one distant token: distant tokens are mixed by their positions, in the same way for every text.

    Parameters
    ----------
    rank
        rows that keys and values are mixed to; 0: a quarter of the block size, 8 to 256
    block
        tokens per block of the causal form; 0: an eighth of the block size, 8 to 256
    """

    bounded = True

    def __init__(
        self, n_embd: int, n_head: int, block_size: int, *, rank: int = 0, block: int = 0, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(n_embd, n_head, block_size, **shared)
        if rank < 0 or block < 0:
            raise ConfigError("linformer.rank and linformer.block must not be negative")
        self.rank = rank = rank or min(256, max(8, block_size // 4))
        self.block = block or min(256, max(8, block_size // 8))
        self.mix_keys = nn.Parameter(torch.randn(rank, block_size) * rank**-0.5)
        self.mix_values = nn.Parameter(torch.randn(rank, block_size) * rank**-0.5)

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax over the rows (and the own block), times the mixtures of tokens in the rows."""
        mixes = self.mix_keys[:, : k.shape[2]], self.mix_values[:, : k.shape[2]]
        if mask is not None:
            seen = mask[:, :, -1:]  # the last token sees all but padding
            mixes = mixes[0] * seen, mixes[1] * seen
        if not self.causal:
            return ops.attention_pattern(q, mixes[0] @ k, None) @ mixes[1]

        def mixtures(first: int) -> tuple[Tensor, Tensor]:
            keys, values = (mix[..., :first] * max(1, first) ** -0.5 for mix in mixes)
            return keys, values

        return ops.summary_pattern(q, k, mask, self.block, mixtures)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """The same by computing the rows first: of the whole text, or of every block."""
        dropout = self.dropout if self.training else 0.0
        hidden_k, hidden_v = (ops.blank(x, padding) for x in (k, v))
        if not self.causal:
            rows = mixed(self.mix_keys, hidden_k), mixed(self.mix_values, hidden_v)
            return ops.fused_attention(q, *rows, None, False, dropout)
        rows = self.before(self.mix_keys, hidden_k), self.before(self.mix_values, hidden_v)
        return summary_attention(q, k, v, rows, self.block, padding, dropout)

    @ops.in_float32
    def before(self, mix: Tensor, x: Tensor) -> Float[Tensor, "R N S C"]:
        """For every block, the rows that mix everything before it."""
        blocks = cut(x, self.block)
        count = blocks.shape[1]
        mix = F.pad(mix, (0, max(0, count * self.block - mix.shape[1])))[:, : count * self.block]
        sums = (mix.unflatten(1, (count, self.block)).transpose(0, 1) @ blocks).cumsum(dim=1)
        length = torch.arange(1, count, dtype=x.dtype, device=x.device)[:, None, None] * self.block
        return F.pad(sums[:, :-1] * length.rsqrt(), (0, 0, 0, 0, 1, 0))


def mixed(mix: Float[Tensor, "S N"], x: Float[Tensor, "B H T C"]) -> Float[Tensor, "B H S C"]:
    """The rows of a whole text, for all heads in one product."""
    rows = mix[:, : x.shape[2]] @ x.transpose(1, 2).flatten(2)
    return ops.split_heads(rows, x.shape[1])
