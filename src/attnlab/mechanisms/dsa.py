"""Sparse attention with a lightning indexer: a small learned score chooses the tokens that each token attends to."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.mechanisms.heads import Attention, Rotation, Shared
from attnlab.mechanisms.mla import Latent
from attnlab.registry import mechanism


class _Guide(torch.autograd.Function):
    """Pass a tensor through; in the backward pass, others get the gradients that are given here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *others: Tensor) -> Tensor:
        ctx.save_for_backward(*others[len(others) // 2 :])
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0], *ctx.saved_tensors, *(None for _ in ctx.saved_tensors)


class Indexer(nn.Module):
    """Scores of pairs of tokens, Σ w·relu(query·key) over a few small heads that share one key per token."""

    def __init__(self, n_embd: int, asked_width: int, heads: int, width: int, rotate: Rotation) -> None:
        super().__init__()
        self.n_head, self.width, self.rotate = heads, width, rotate
        self.query = nn.Linear(asked_width, heads * width, bias=False)
        self.key = nn.Linear(n_embd, width, bias=False)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.weight = nn.Linear(n_embd, heads, bias=False)

    @ops.in_float32  # what is nearly equal would be chosen by rounding
    def forward(
        self, x: Float[Tensor, "B T D"], asked: Float[Tensor, "B T A"], start: int
    ) -> tuple[Float[Tensor, "B T Q"], Float[Tensor, "B T K"]]:
        """Queries of all heads followed by their weights, and keys."""
        queries = self.rotate(ops.split_heads(self.query(asked), self.n_head), start)
        weights = self.weight(x) * (self.n_head * self.width) ** -0.5
        keys = self.rotate(self.norm(self.key(x))[:, None], start)
        return torch.cat([queries.transpose(1, 2).flatten(2), weights], dim=-1), keys[:, 0]

    @ops.in_float32
    def scores(self, asked: Float[Tensor, "B T Q"], keys: Float[Tensor, "B S K"]) -> Float[Tensor, "B T S"]:
        """The scores of all pairs; head by head, as only their sum is needed."""
        queries, weights = asked.split([self.n_head * self.width, self.n_head], dim=-1)
        parts = zip(queries.split(self.width, dim=-1), weights.split(1, dim=-1), strict=True)
        return sum((weight * (query @ keys.mT).relu() for query, weight in parts), torch.zeros((), device=keys.device))


def limits(
    scores: Float[Tensor, "B T S"], mask: Bool[Tensor, "#B 1 T S"] | None, topk: int
) -> tuple[Float[Tensor, "B 1 T 1"], Int[Tensor, "B 1 T 1"]]:
    """The lowest of the `topk` highest visible scores of each row, and how many that are equal to it are among them."""
    scores = scores[:, None] if mask is None else scores[:, None].masked_fill(~mask, float("-inf"))
    least = scores.topk(min(topk, scores.shape[-1]), dim=-1, sorted=False).values.amin(-1, keepdim=True)
    return least, topk - (scores > least).sum(-1, keepdim=True)


def choose(
    scores: Float[Tensor, "B T S"],
    mask: Bool[Tensor, "#B 1 T S"] | None,
    least: Float[Tensor, "B 1 T 1"],
    equal: Int[Tensor, "B 1 T 1"],
) -> Bool[Tensor, "B 1 T S"]:
    """The visible tokens above the limit, and the first of those equal to it."""
    ties = scores[:, None] == least
    chosen = (scores[:, None] > least) | ties & ((ties if mask is None else ties & mask).cumsum(-1) <= equal)
    return chosen if mask is None else chosen & mask


def _pack(x: Float[Tensor, "B T Q"], heads: int) -> Float[Tensor, "B H T C"]:
    """Spread the channels of a token over its heads."""
    return ops.split_heads(ops.fill(x, columns=-x.shape[-1] % heads), heads)


class _Selecting(Attention):
    """Attention over the tokens that its indexer chooses; its parts are the last channels of queries and keys."""

    reads_input = True
    indexer: Indexer
    topk: int

    def add_indexer(self, sizes: tuple[int, int, int], options: tuple[int, int, int], rotate: Rotation) -> None:
        """Add an indexer for inputs of these widths, of the tokens and of queries, in blocks of this size."""
        (n_embd, asked, block_size), (topk, heads, width) = sizes, options
        if topk < 0 or heads < 1 or width < 1:
            raise ConfigError(f"dsa needs positive topk, index_heads and index_width, not {topk}, {heads} and {width}")
        self.topk = topk or max(16, block_size // 4)
        self.indexer = Indexer(n_embd, asked, heads, width, rotate)

    def asked(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T A"]:
        """What the queries of the indexer are projected from."""
        return x

    def project(self, x: Tensor, start: int) -> list[Tensor]:
        """Queries, keys and values with the queries and keys of the indexer, which no gradient leaves."""
        q, k, v = super().project(x, start)
        parts = self.indexer(x.detach(), self.asked(x).detach(), start)
        for part in parts:
            if part.requires_grad:  # the mean over the tokens, as losses are
                part.register_hook(lambda gradient: gradient / (x.shape[0] * x.shape[1]))
        q, k = (
            torch.cat([of_heads, _pack(part, of_heads.shape[1])], -1)
            for of_heads, part in zip((q, k), parts, strict=True)
        )
        return [q, k, v]

    def separate(self, q: Tensor, k: Tensor) -> list[Tensor]:
        """Queries and keys of the heads, then those of the indexer."""
        separated = []
        for x, width in ((q, (self.indexer.width + 1) * self.indexer.n_head), (k, self.indexer.width)):
            own = -(-width // x.shape[1])
            separated += [x[..., :-own], x[..., -own:].transpose(1, 2).flatten(2)[..., :width]]
        return separated

    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The weights over the chosen tokens."""
        q, asked, k, keys = self.separate(q, k)
        scores = self.indexer.scores(asked, keys)
        mask = choose(scores.detach(), mask, *limits(scores.detach(), mask, self.topk))
        weights = self.weights(q, k, mask)
        if not scores.requires_grad:
            return weights
        guided: Tensor = _Guide.apply(weights, scores, _towards(scores, weights, mask))  # type: ignore[no-untyped-call]
        return guided

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of the scaled products."""
        return ops.attention_pattern(q, k, mask)

    def expand(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of every head."""
        return k, v

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """By torch's fused kernel with a mask, for a slice of the queries at a time.

        The gradients of the indexer are computed at once, and the mask again in the backward pass, from its limits.
        """
        q, asked, k, keys = self.separate(q, k)
        k, v = self.expand(k, v)
        learns = asked.requires_grad
        gradients, parts = (torch.zeros_like(asked), torch.zeros_like(keys)), []
        for rows, seen, mask in ops.slices_of_queries(len(q) * q.shape[1], q.shape[2], padding, self.causal, q.device):
            own = [part.detach().requires_grad_(learns) for part in (asked[:, rows], keys[:, seen])]
            scores = self.indexer.scores(*own)
            bounds = limits(scores.detach(), mask, self.topk)
            if learns:
                with torch.no_grad():
                    chosen = choose(scores, mask, *bounds)
                    weights = ops.attention_pattern(q[:, :, rows], k[:, :, seen], chosen)
                slopes = torch.autograd.grad(scores, own, _towards(scores, weights, chosen))
                for total, slope, place in zip(gradients, slopes, (rows, seen), strict=True):
                    total[:, place] += slope
            attended = (q[:, :, rows], k[:, :, seen], v[:, :, seen])
            parts.append(
                checkpoint(
                    self._attend, *attended, *(part.detach() for part in own), mask, *bounds, use_reentrant=False
                )
            )
        z = torch.cat(parts, dim=2)
        guided: Tensor = _Guide.apply(z, asked, keys, *gradients) if learns else z  # type: ignore[no-untyped-call]
        return guided

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, asked: Tensor, keys: Tensor, *limited: Any) -> Tensor:
        """The averages over the tokens within the limits."""
        chosen = choose(self.indexer.scores(asked, keys), *limited)
        return ops.fused_attention(q, k, v, None, False, self.dropout if self.training else 0.0, mask=chosen)


@torch.no_grad()
def _towards(
    scores: Float[Tensor, "B T S"], weights: Float[Tensor, "B H T S"], mask: Bool[Tensor, "B 1 T S"]
) -> Float[Tensor, "B T S"]:
    """The gradient, by scores, of the KL divergence of their softmax from the mean weights of all heads."""
    return (ops.masked_softmax(scores[:, None], mask) - weights.mean(1, keepdim=True))[:, 0]


@mechanism("dsa", paper="arXiv:2512.02556", cost="n²·i + n·k·d", causal=True)
class Sparse(_Selecting):
    """Dot-product attention over the `topk` visible tokens with the highest scores of an indexer.

    The indexer learns in the backward pass of any loss: its scores get the gradient of the KL divergence of their softmax
    from the mean weights of all heads over the chosen tokens, averaged over tokens, whatever the scale of the loss. Nothing
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
        width, rotation = index_width or n_embd // n_head, shared.get("rotation", ops.ROTARY)
        rotate = Rotation(block_size, width, shared.get("rotary", False), rotation)
        self.add_indexer((n_embd, n_embd, block_size), (topk, index_heads, width), rotate)


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
        width of each; 0: that of the other heads
    rank
        width of the latent; 0: half of the model's width
    rope
        width of the rotary part, even; 0: half of a head
    query_rank
        width of a latent for queries; 0: queries directly from the input
    """

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
        self.add_indexer((n_embd, query_rank or n_embd, block_size), (topk, index_heads, own), rotate)

    def asked(self, x: Tensor) -> Tensor:
        """The latent of the queries, or the input if there is none."""
        return self.heads.query_input(x)

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """Those of latent attention."""
        return Latent.pattern(self, q, k, mask)

    def expand(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As in latent attention."""
        return Latent.expand(self, k, v)
