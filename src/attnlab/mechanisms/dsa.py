"""Sparse attention with a lightning indexer: a small learned score chooses the tokens that each token attends to."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.mechanisms.heads import Attention, Rotation, Shared
from attnlab.mechanisms.indexer import Indexer, choose, teach
from attnlab.mechanisms.mla import Latent
from attnlab.registry import mechanism


def _attach(x: Float[Tensor, "B H T C"], more: Float[Tensor, "B T Q"]) -> Float[Tensor, "B H T E"]:
    """Add channels of a token to those of its heads, spread over them."""
    return torch.cat([x, ops.split_heads(ops.fill(more, -more.shape[-1] % x.shape[1]), x.shape[1])], dim=-1)


def _separate(x: Float[Tensor, "B H T E"], width: int) -> tuple[Float[Tensor, "B H T C"], Float[Tensor, "B T Q"]]:
    """The channels of the heads, and those of the token, which have this width."""
    own = -(-width // x.shape[1])
    return x[..., :-own], x[..., -own:].transpose(1, 2).flatten(2)[..., :width]


class _Selecting(Attention):
    """Attention over the tokens that its indexer chooses; its parts are the last channels of queries and keys."""

    reads_input = True
    indexer: Indexer

    def asked(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T A"]:
        """What the queries of the indexer are projected from."""
        return x

    def project(self, x: Tensor, start: int) -> list[Tensor]:
        """Queries and keys with those of the indexer, which no gradient leaves, and values."""
        q, k, v = super().project(x, start)
        parts = self.indexer(x.detach(), self.asked(x).detach(), start)
        share = 1 / (x.shape[0] * x.shape[1])  # of a token in the gradient, as in the mean of a loss
        asked, keys = (part.detach() + share * (part - part.detach()) for part in parts)
        return [_attach(q, asked), _attach(k, keys), v]

    def choose(self, q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries and keys of the heads, the scores of the indexer, and the tokens that it chooses."""
        q, asked = _separate(q, (self.indexer.width + 1) * self.indexer.n_head)
        k, keys = _separate(k, self.indexer.width)
        scores = self.indexer.scores(asked, keys)
        return q, k, scores, choose(scores.detach(), mask, self.indexer.topk)

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The weights over the chosen tokens."""
        q, k, scores, chosen = self.choose(q, k, mask)
        return teach(self.weights(q, k, chosen), scores, q, k, chosen, self.weights)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scaled products."""
        return ops.attention_pattern(q, k, mask)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By torch's fused kernel with a mask, for a slice of the queries at a time."""
        return ops.attend_in_slices(self._attend, q, k, v, padding, self.causal)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The averages over the chosen tokens."""
        q, k, scores, chosen = self.choose(q, k, mask)
        z = ops.fused_attention(q, k, v, None, False, self.dropout if self.training else 0.0, mask=chosen)
        return teach(z, scores, q, k, chosen, ops.attention_pattern)


@mechanism("dsa", paper="arXiv:2512.02556", cost="n²·i + n·k·d", causal=True)
class Sparse(_Selecting):
    """Dot-product attention over the `topk` visible tokens with the highest scores of an indexer.

    The indexer learns in the backward pass of any loss: its scores get the gradient of the KL divergence of their softmax
    from the mean weights of all heads over the chosen tokens, averaged over tokens, whatever the scale of the loss. So it
    learns slightly differently where a batch is computed in parts: in several processes, split by length, or packed. Nothing
    flows from it into the rest of the model.

    Costs: the indexer scores all pairs, and here the fused kernel computes all pairs too: in training several times the time
    of `dot`, with memory linear in the length. The choice saves time only on devices with kernels made for it.
    Cannot: find what the indexer overlooks: only chosen tokens teach it.

    Parameters
    ----------
    topk
        tokens that each token attends to; 0: a quarter of the block size, at least 16
    index_heads
        heads of the indexer
    index_width
        width of each; 0: that of the other heads
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        *,
        topk: int = 0,
        index_heads: int = 4,
        index_width: int = 0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(n_embd, n_head, block_size, **shared)
        width, topk = index_width or n_embd // n_head, topk or max(16, block_size // 4)
        rotate = Rotation(block_size, width, shared.get("rotary", False), shared.get("rotation", ops.ROTARY))
        self.indexer = Indexer(n_embd, n_embd, index_heads, width, topk, rotate)


@mechanism("dsa_mla", paper="arXiv:2512.02556", cost="n²·i + n·k·d", causal=True)
class SparseLatent(_Selecting, Latent):
    """Multi-head latent attention over the tokens that an indexer chooses, as in DeepSeek-V3.2.

    The indexer is that of `dsa`; its queries are projected from the latent of the queries if there is one.

    Costs: as `dsa`; the cache holds rank + rope + index_width numbers per token for all heads together.
    Cannot: find what the indexer overlooks, or fetch more from a token than its latent holds.

    Parameters
    ----------
    topk
        tokens that each token attends to; 0: a quarter of the block size, at least 16
    index_heads
        heads of the indexer
    index_width
        width of each, at least rope; 0: that of the other heads
    rank
        width of the latent; 0: half of the model's width
    rope
        width of the rotary part, even; 0: half of a head
    query_rank
        width of a latent for queries; 0: queries directly from the input
    """

    weights = Latent.pattern

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        width: int | None = None,
        *,
        topk: int = 0,
        index_heads: int = 4,
        index_width: int = 0,
        rank: int = 0,
        rope: int = 0,
        query_rank: int = 0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(n_embd, n_head, block_size, width, rank=rank, rope=rope, query_rank=query_rank, **shared)
        own, rotated = index_width or width or n_embd // n_head, self.heads.widths[1]
        if own < rotated:
            raise ConfigError(f"dsa_mla needs an index_width of at least rope, {rotated}, not {own}")
        rotation = ops.Rotary("half", self.heads.rotate.rotation.base)
        rotate = Rotation(block_size, rotated, shared.get("rotary", False), rotation)
        topk = topk or max(16, block_size // 4)
        self.indexer = Indexer(n_embd, query_rank or n_embd, index_heads, own, topk, rotate)

    def asked(self, x: Tensor) -> Tensor:
        """The latent of the queries, or the input if there is none."""
        return self.heads.query_input(x)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """As there, with keys and values of every head."""
        k, keys = _separate(k, self.indexer.width)
        k, v = self.expand(k, v)
        return super().fast(q, _attach(k, keys), v, padding)
