"""The lightning indexer: small heads whose scores choose the tokens that attention looks at, and how it learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.mechanisms.heads import Rotation

_Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]  # weights of queries and keys under a mask


class _Teach(torch.autograd.Function):
    """See `teach`; the weights are computed in the backward pass, where a checkpoint does not compute them twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scores: Tensor, q: Tensor, k: Tensor, chosen: Tensor, weigh: _Weigh) -> Tensor:
        ctx.weigh = weigh
        ctx.save_for_backward(scores, q, k, chosen)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scores, q, k, chosen = ctx.saved_tensors
        weights = ctx.weigh(q, k, chosen).mean(1, keepdim=True)
        return gradients[0], ops.masked_softmax(scores, chosen) - weights, None, None, None, None


def teach(
    x: Float[Tensor, "B H T _"],
    scores: Float[Tensor, "B 1 T S"],
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B G S K"],
    chosen: Bool[Tensor, "B 1 T S"],
    weigh: _Weigh,
) -> Float[Tensor, "B H T _"]:
    """Return a result of attention as it is, whose backward pass also teaches the scores that chose its tokens.

    They get the gradient of the KL divergence of their softmax from the mean of the heads' weights, summed over tokens.
    """
    taught: Tensor = _Teach.apply(x, scores, q, k, chosen, weigh)  # type: ignore[no-untyped-call]
    return taught


class Indexer(nn.Module):
    """Scores of pairs of tokens, Σ w·relu(query·key) over a few small heads that share one key per token."""

    def __init__(self, n_embd: int, asked_width: int, heads: int, width: int, topk: int, rotate: Rotation) -> None:
        super().__init__()
        if min(heads, width, topk) < 1:
            raise ConfigError(f"dsa needs positive topk, index_heads and index_width, not {topk}, {heads} and {width}")
        self.n_head, self.width, self.topk, self.rotate = heads, width, topk, rotate
        self.query = nn.Linear(asked_width, heads * width, bias=False)
        self.key = nn.Linear(n_embd, width, bias=False)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.weight = nn.Linear(n_embd, heads, bias=False)

    @ops.in_float32  # what is nearly equal would be chosen by rounding
    def forward(
        self, x: Float[Tensor, "B T D"], asked: Float[Tensor, "B T A"], start: int
    ) -> tuple[Float[Tensor, "B T Q"], Float[Tensor, "B T K"]]:
        """Queries of all heads followed by their weights, and keys."""
        x, asked = (part.to(self.key.weight.dtype) for part in (x, asked))
        queries = self.rotate(ops.split_heads(self.query(asked), self.n_head), start)
        weights = self.weight(x) * (self.n_head * self.width) ** -0.5
        keys = self.rotate(self.norm(self.key(x))[:, None], start)
        return torch.cat([queries.transpose(1, 2).flatten(2), weights], dim=-1), keys[:, 0]

    @ops.in_float32
    def scores(self, asked: Float[Tensor, "B T Q"], keys: Float[Tensor, "B S K"]) -> Float[Tensor, "B 1 T S"]:
        """The scores of all pairs; head by head, as only their sum is needed."""
        queries, weights = asked.split([self.n_head * self.width, self.n_head], dim=-1)
        parts = zip(queries.split(self.width, dim=-1), weights.split(1, dim=-1), strict=True)
        return sum((weight * (query @ keys.mT).relu() for query, weight in parts), torch.zeros(()).to(keys))[:, None]


def choose(
    scores: Float[Tensor, "B 1 T S"], mask: Bool[Tensor, "#B 1 T S"] | None, topk: int
) -> Bool[Tensor, "B 1 T S"]:
    """The visible tokens with the `topk` highest scores of each row; of equal ones the first."""
    scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
    least = scores.topk(min(topk, scores.shape[-1]), dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, equal = scores > least, scores == least
    chosen = above | equal & (equal.cumsum(-1) <= topk - above.sum(-1, keepdim=True))
    return chosen if mask is None else chosen & mask
