"""Perceiver: a few latent vectors read the text, and the text reads them."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.kernels.blocks import cut, summary_attention
from attnlab.mechanisms.heads import Attention, Shared
from attnlab.registry import mechanism

AT_ONCE = 1 << 20  # weights of latents computed together
_HIDDEN = -1e30  # a score of zero weight that has a gradient


@mechanism("perceiver", paper="arXiv:2103.03206", cost="n·k·d", causal=True, weights="low rank", knobs=("latents",))
class Perceiver(Attention):
    """A bottleneck: learned latents take averages of all tokens, and every token takes an average of the latents.

    A latent's key and value are the averages of the keys and values it reads. The causal form works in blocks: a token sees
    the tokens of its own block up to itself, and latents that have read everything before the block. The pattern shows the
    weight of each token through the latents.

    For a stack whose middle layers process only the latents, as in the course reports, see the setting model.bottleneck
    and the preset mingpt-perceiver.

    Costs: time and memory grow with length times latents.
    Cannot: pick out more different distant tokens than it has latents; what they look for is the same for every text.

    Parameters
    ----------
    latents
        number of learned vectors; 0: a quarter of the block size, 8 to 64
    block
        tokens per block of the causal form; 0: an eighth of the block size, 8 to 256
    """

    def __init__(
        self, n_embd: int, n_head: int, block_size: int, *, latents: int = 0, block: int = 0, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(n_embd, n_head, block_size, **shared)
        if latents < 0 or block < 0:
            raise ConfigError("perceiver.latents and perceiver.block must not be negative")
        self.block = block or min(256, max(8, block_size // 8))
        self.latents = nn.Parameter(torch.randn(latents or min(64, max(8, block_size // 4)), n_embd))

    def asking(self) -> Float[Tensor, "1 H S C"]:
        """The queries of the latents."""
        asking = ops.split_heads(self.heads.query(self.latents)[None], self.heads.n_head)
        return self.heads.query_norm(asking)

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The weights of the tokens in the latents, and of the latents in every token."""
        seen = None if mask is None else mask[:, :, -1:]  # the last token sees all but padding
        asking = self.asking().expand(q.shape[0], -1, -1, -1)

        def reading(last: int) -> Tensor:
            may = None if seen is None else seen[..., :last].expand(-1, -1, asking.shape[2], -1)
            return ops.attention_pattern(asking, k[:, :, :last], may)

        if not self.causal:
            read = reading(k.shape[2])
            return ops.attention_pattern(q, read @ k, None) @ read
        return ops.summary_pattern(q, k, mask, self.block, lambda first: (reading(first),) * 2)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """The same by computing the latents first: over the whole text, or of every block."""
        dropout = self.dropout if self.training else 0.0
        both = torch.cat([ops.blank(k, padding), ops.blank(v, padding)], dim=-1)
        if not self.causal:
            keys, values = self.read(k, both, padding).chunk(2, dim=-1)
            return ops.fused_attention(q, keys, values, None, False, dropout)
        scores = k @ self.asking().transpose(-2, -1) / k.shape[-1] ** 0.5
        return summary_attention(q, k, v, self.before(scores, both, padding), self.block, padding, dropout)

    def read(self, k: Tensor, both: Tensor, padding: Tensor | None) -> Tensor:
        """What the latents read of a whole text, a few heads at a time, so that their weights stay in the cache.

        Two fused calls with the width of keys, or one with twice the width, take longer than computing these few weights.
        """
        asking = self.asking().expand(k.shape[0], -1, -1, -1)
        may = None if padding is None else ~padding[:, None, None].expand(-1, -1, asking.shape[2], -1)
        together = max(1, AT_ONCE // (len(k) * k.shape[2] * asking.shape[2]))
        parts = zip(*(x.split(together, dim=1) for x in (asking, k, both)), strict=True)
        return torch.cat([ops.attention_pattern(a, keys, may) @ b for a, keys, b in parts], dim=1)

    @ops.in_float32
    def before(self, scores: Tensor, both: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the latents that have read what comes before each block.

        The average over several blocks is the average of the blocks' averages, weighted by their sums of exponentials.
        """
        if padding is not None:
            scores = scores.masked_fill(padding[:, None, :, None], _HIDDEN)
        short = -scores.shape[2] % self.block
        scores = ops.fill(scores, rows=short, value=_HIDDEN).flatten(0, 1).unflatten(1, (-1, self.block))
        size = scores.logsumexp(dim=2)
        averages = (scores - size[:, :, None]).exp().transpose(-2, -1) @ cut(both, self.block)
        total = size.logcumsumexp(dim=1)
        part = (size - total).exp()[..., None]
        running, states = torch.zeros_like(averages[:, 0]), []
        for weight, average in zip(part.unbind(1), averages.unbind(1), strict=True):
            states.append(running)
            running = running + weight * (average - running)
        keys, values = torch.stack(states, dim=1).chunk(2, dim=-1)
        return keys, values
